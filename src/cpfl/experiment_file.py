"""Experiments as text: presets, TOML files and `key=value` words."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cpfl.errors import SettingError
from cpfl.experiment import RECIPES, Experiment, Federation
from cpfl.setting_sentences import unknown

FOLLOWING = (*(f"distillation.{key}" for key in RECIPES["paper"]), "federation.server_momentum")
"""What another recipe or another server begins elsewhere, unless it is given with it."""


def load(source: str | Path, assignments: Iterable[str] = ()) -> Experiment:
    """A preset by name, or a TOML file, with `key=value` words on top."""
    return with_settings(_load(source), parse_assignments(assignments))


def _load(source: str | Path) -> Experiment:
    text = str(source)
    if not text.endswith(".toml") and not Path(text).is_file():
        if text not in presets():
            near = difflib.get_close_matches(text, presets(), n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise SettingError(
                f"no preset is called {text!r}{hint} Presets: {', '.join(presets())}; or give a .toml file"
            )
        return parse(resources.files("cpfl.presets").joinpath(f"{text}.toml").read_text(), text)
    try:
        content = Path(text).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot read the experiment {text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{text} is not valid TOML: it is not UTF-8 text") from None
    return parse(content, text)


def presets() -> list[str]:
    """The names of the experiments that come with the package."""
    return sorted(f.name[:-5] for f in resources.files("cpfl.presets").iterdir() if f.name.endswith(".toml"))


def parse(text: str, origin: str) -> Experiment:
    """An experiment from TOML text."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{origin} is not valid TOML: {error}") from None
    return Experiment(**tree)


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` words of a command line; values as in TOML, bare words as strings."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            raise SettingError(f"--set takes key=value, not {pair!r}")
        settings[key.strip()] = _value(text.strip())
    return settings


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """A copy with dotted keys replaced, checked as a whole."""
    tree = experiment.model_dump(mode="json")
    own = tree["distillation"]["recipe"]
    if settings.get("distillation.recipe", own) != own:  # another recipe, as a whole
        for key in RECIPES["paper"]:
            del tree["distillation"][key]
    server = experiment.federation.server
    if settings.get("federation.server", server) != server:  # what the other one had by default is not for this one
        plain = Federation(server=server).server_momentum
        if experiment.federation.server_momentum == plain:
            del tree["federation"]["server_momentum"]
    for key, value in settings.items():
        *path, last = key.split(".")
        node: Any = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise SettingError(unknown(key, Experiment))
        node[last] = value
    return Experiment(**tree)


def to_toml(experiment: Experiment) -> str:
    """The experiment as a file that reads back equal."""
    tree = experiment.model_dump(mode="json", exclude_none=True)
    sections = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in tree.items() if key not in sections]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def parse_list(text: str) -> list[Any]:
    """Values with commas between them, each as in TOML; bare words as strings."""
    whole = _value(f"[{text}]")
    return whole if isinstance(whole, list) else [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)
