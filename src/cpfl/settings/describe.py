"""Every setting as a reader sees it: `cpfl settings`, the documentation's page and the JSON schema come from here."""

import json
import typing
from dataclasses import dataclass
from typing import Any, cast

from pydantic.fields import FieldInfo

from cpfl.errors import SettingError
from cpfl.registry import Registry
from cpfl.settings import choices
from cpfl.settings.effects import conditions
from cpfl.settings.experiment import Experiment
from cpfl.settings.messages import unknown_key
from cpfl.settings.types import Section

_LIMITS = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
_NAMES = {float: "number", int: "whole number", str: "text", bool: "true or false", dict: "table", tuple: "list"}


@dataclass(frozen=True)
class SettingInfo:
    """One setting: its dotted key, what it takes, its default, and when it has an effect."""

    key: str
    type: str
    default: Any
    allowed: str
    effect: str
    doc: str


def all_settings() -> list[SettingInfo]:
    """All settings, section by section."""
    found = []
    for name, field in Experiment.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found += [_info(f"{name}.{key}", inner) for key, inner in kind.model_fields.items()]
        else:
            found.append(_info(name, field))
    return found


def find(key: str) -> list[SettingInfo]:
    """The setting of this key, or all of a section."""
    found = [info for info in all_settings() if info.key == key or info.key.startswith(f"{key}.")]
    if not found:
        raise SettingError(unknown_key(key, Experiment))
    return found


def page() -> str:
    """All settings as a page in Markdown."""
    lines = ["# Settings", "", "Made by `cpfl settings --markdown`. `cpfl settings KEY` explains a single setting.", ""]
    lines += ["A setting that is given and has no effect is refused. Keys are what `--set` takes."]
    section = None
    for info in all_settings():
        name = info.key.rpartition(".")[0]
        if name != section:
            section, kind = name, Experiment.model_fields[name].annotation if name else Experiment
            lines += ["", f"## {name or 'experiment'}", "", str(kind.__doc__), ""]
            lines += ["| setting | default | allowed | what it is |", "|---|---|---|---|"]
        default = "none" if info.default is None else json.dumps(info.default, ensure_ascii=False)
        effect = f" Has an effect with {info.effect}." if info.effect else ""
        row = (f"`{info.key}`", f"`{default}`", info.allowed or info.type, info.doc + effect)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """The experiment file as a JSON schema."""
    return Experiment.model_json_schema()


def _info(key: str, field: FieldInfo) -> SettingInfo:
    kind, limits = field.annotation, list(field.metadata)
    while typing.get_origin(kind) is typing.Annotated:
        kind, *more = typing.get_args(kind)
        limits += more
    origin = typing.get_origin(kind)
    options = [part for part in typing.get_args(kind) if part is not type(None)]
    named = [one for one in vars(choices).values() if isinstance(one, Registry) and one.key == key]
    if named:
        name, allowed = "name", f"{', '.join(named[0].names)}, or module:Class"
    elif origin is typing.Literal:
        name, allowed = "choice", ", ".join(map(str, options))
    else:
        plain = typing.get_origin(options[0]) if type(None) in typing.get_args(kind) else origin or kind
        name, allowed = _NAMES.get(cast("type", plain), "text"), _range(limits)
    default = field.get_default(call_default_factory=True)
    effect = "; ".join(conditions(key, Experiment))
    return SettingInfo(key, name, default, allowed, effect, " ".join((field.description or "").split()))


def _range(metadata: list[Any]) -> str:
    """The limits of a number, from pydantic's metadata and that of the types it is made of."""
    words = []
    for one in metadata:
        for inner in getattr(one, "metadata", [one]):  # a FieldInfo holds several
            words += [text.format(getattr(inner, key)) for key, text in _LIMITS.items() if hasattr(inner, key)]
    return ", ".join(dict.fromkeys(words))
