"""Experiments as text: presets, TOML files and `key=value` words."""

import itertools
import json
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from cpfl.errors import SettingError, first_line, quoted
from cpfl.registry import did_you_mean
from cpfl.settings import effects
from cpfl.settings.distillation import RECIPES
from cpfl.settings.experiment import DISTILLATION, Experiment, fields, unknown_key
from cpfl.settings.types import Section, is_text
from cpfl.user_files import check_readable, expanded

MAX_BYTES = 1 << 24  # of an experiment file
# A key of so many parts: the time and memory that tomllib needs grow with their square. Settings have 34 at most.
DEEP_KEY = re.compile(r"""(?<![\w\\-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")
_ARGS_OF = ("objective", "client", "server", "selection", "lr_schedule", "rule", "aggregation", "weights", "loss")


def load(
    source: str | Path, assignments: Iterable[str] = (), settings: Mapping[str, Any] | None = None, strict: bool = True
) -> Experiment:
    """A preset by name, or a TOML file, with `key=value` words or dotted settings on top; validated once.

    `strict` refuses settings that have no effect.
    """
    changes = parse_assignments(assignments) | dict(settings or {})
    return _changed(_read(source), changes, strict, from_file=True)


def with_settings(experiment: Experiment, settings: Mapping[str, Any], strict: bool = True) -> Experiment:
    """A copy with dotted keys replaced, checked as a whole; `strict` refuses those that have no effect."""
    if not settings:
        return experiment
    return _changed(experiment.model_dump(mode="json", exclude_unset=True), settings, strict)


def varied_base(
    source: str | Path | Experiment, settings: Mapping[str, Any], values: Mapping[str, Sequence[Any]]
) -> Experiment:
    """What a sweep over these values of dotted keys starts from.

    What is refused alone may be right in its runs: then it takes the values of the first run that is not refused.
    """

    def changed(own: Mapping[str, Any]) -> Experiment:
        changes = {**settings, **own}
        if isinstance(source, Experiment):
            return with_settings(source, changes, strict=False)
        return load(source, settings=changes, strict=False)

    try:
        return changed({})
    except SettingError as alone:
        refused = alone
        several = {key: sorted(some, key=lambda one: one == 1) for key, some in values.items()}  # n = 1 leaves much out
        for number, combination in enumerate(itertools.product(*several.values())):
            try:
                return changed(dict(zip(several, combination, strict=True)))
            except SettingError as error:  # that of the first run is told: it would be met next
                refused = refused if number else error
        raise refused from None


def given_values(source: str | Path | Experiment, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a source and the settings on top of it give, by dotted keys; nothing is checked yet."""
    tree = source.model_dump(exclude_unset=True) if isinstance(source, Experiment) else _read(source)
    return effects.leaves(tree) | effects.leaves(settings)


def read_stored(path: Path) -> Experiment:
    """The experiment of a run folder, which holds every setting, also those without effect."""
    return _pruned(Experiment(**_read(path)))


def _read(source: str | Path) -> dict[str, Any]:
    text = str(expanded(Path(source), "the experiment")) if str(source).startswith("~") else str(source)
    if "\0" in text:
        raise SettingError(f"{quoted(text)} is neither a preset nor the name of a file")
    if not text.endswith(".toml") and not os.path.isfile(text):
        if text not in presets():
            hint = did_you_mean(text, presets())
            raise SettingError(
                f"no preset is called {quoted(text)}; {hint}Presets: {', '.join(presets())}; or give a .toml file"
            )
        return tomllib.loads(_preset_text(text))
    try:
        check_readable(Path(text), MAX_BYTES)
        return _parsed(Path(text).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingError(f"cannot read the experiment {text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{text} is not valid TOML: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{text} is not valid TOML: {first_line(error)}") from None
    except (ValueError, RecursionError):  # a number of 5,000 digits, a thousand brackets
        raise SettingError(f"{text} is not valid TOML: its numbers are too long or its tables too deep") from None


def _parsed(text: str) -> dict[str, Any]:
    if DEEP_KEY.search(text):
        raise RecursionError
    return tomllib.loads(text)


def presets() -> list[str]:
    """The names of the experiments that come with the package."""
    names = {file.name for file in resources.files("cpfl.presets").iterdir() if file.name.endswith(".toml")}
    return sorted(name.removesuffix(".toml") for name in names - {"published.toml"})


def description(preset: str) -> str:
    """What a preset is: the first sentence of the comment that its file begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), _preset_text(preset).splitlines())
    return re.split(r"\.(?: |$)", " ".join(line.removeprefix("# ") for line in lines))[0]


def _preset_text(name: str) -> str:
    return resources.files("cpfl.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` words of a command line; values as in TOML, bare words as strings."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key.strip():
            raise SettingError(f"a setting is given as key=value, not {quoted(pair)}")
        settings[key.strip()] = _value(text.strip())
    return settings


def _changed(tree: dict[str, Any], settings: Mapping[str, Any], strict: bool, from_file: bool = False) -> Experiment:
    """The experiment of this tree with dotted keys replaced.

    Replaced keys must have an effect if `strict`, those of a file unless they only repeat a default.

    Settings that only belonged to what is replaced go: those of another recipe, the arguments of another algorithm, and
    whatever has no effect any more.
    """
    distillation = _table(tree, "distillation")
    if settings.get("distillation.recipe", ...) not in (..., distillation.get("recipe", "cpfl")):
        for key in RECIPES["paper"]:
            distillation.pop(key, None)
    objective = _table(tree, "model").get("objective")
    if settings.get("model.objective", objective) != objective:
        for key, value in DISTILLATION.get(str(objective), {}).items():
            if distillation.get(key) == value:
                distillation.pop(key)
    for key, value in settings.items():
        section, _, leaf = key.rpartition(".")
        if leaf in _ARGS_OF and value != _table(tree, section).get(leaf, ...):
            _table(tree, section).pop(f"{leaf}_args", None)
    for key, value in settings.items():
        _put(tree, key, value)
    changed = Experiment(**tree)
    if strict:
        effects.check([changed], settings, settings)
    pruned = _pruned(changed)
    if from_file:
        kept = effects.flat(pruned)
        idle = [key for key, value in effects.flat(changed).items() if value != kept[key] and key not in settings]
        effects.check([changed], idle, settings)
    return pruned


def _table(tree: dict[str, Any], section: str) -> dict[str, Any]:
    """A section; an empty one if there is none, or something else in its place, which is refused later."""
    found = tree.get(section)
    return found if isinstance(found, dict) else {}


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, which may lie within a table such as federation.client_args."""
    *path, last = key.split(".")
    if not is_text(key):
        raise SettingError(unknown_key(key))
    if path:
        table = fields().get(".".join(path[:2]))
        kind = table.annotation if table else None
        if typing.get_origin(kind) is not dict and not (isinstance(kind, type) and issubclass(kind, Section)):
            raise SettingError(unknown_key(key))
    for part in path:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise SettingError(unknown_key(key))
    tree[last] = value


def _pruned(experiment: Experiment) -> Experiment:
    """The same experiment, with settings that have no effect back at their defaults, and what needs those."""
    while idle := [key for key in effects.given(experiment) if effects.unmet(experiment, key)]:
        tree = experiment.model_dump(mode="json", exclude_unset=True)
        for key in idle:
            section, _, leaf = key.rpartition(".")
            (tree[section] if section else tree).pop(leaf)
        experiment = Experiment(**tree)
    return experiment


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
        tree = _parsed(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):  # a number of 5,000 digits, a thousand brackets
        raise SettingError(f"{quoted(text)} is no value: its number is too long or its lists too deep") from None
    return tree["v"] if set(tree) == {"v"} else text  # a line break would begin another key


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML does not take as it is
