"""Every setting as a reader sees it: `cpfl settings`, the documentation's page and the JSON schema come from here."""

import json
import re
from dataclasses import dataclass
from typing import Any

from cpfl.errors import SettingError
from cpfl.registry import Registry
from cpfl.settings import choices
from cpfl.settings.effects import conditions
from cpfl.settings.experiment import Experiment, fields, unknown_key

# From the JSON schema to words.
_LIMITS = {
    "minimum": "{} or more", "exclusiveMinimum": "above {}", "maximum": "at most {}", "exclusiveMaximum": "below {}"
}  # fmt: skip
_TYPES = {
    "number": "number", "integer": "whole number", "string": "text", "boolean": "true or false", "object": "table",
    "array": "list",
}  # fmt: skip


@dataclass(frozen=True)
class SettingInfo:
    """One setting: its dotted key, what it takes, its default, and when it has an effect."""

    key: str
    type: str
    default: Any
    allowed: str
    effect: str
    doc: str

    @property
    def first_sentence(self) -> str:
        """What the setting is, in short."""
        return re.split(r"\.(?: (?=[A-Z])|$)", self.doc)[0]  # "et al. 2017" ends none

    def __str__(self) -> str:
        """All of it, as `cpfl settings KEY` explains it."""
        effect = f"with {self.effect}" if self.effect else "always"
        facts = {"type": self.type, "default": as_text(self.default), "allowed": self.allowed, "has an effect": effect}
        lines = [f"  {name:<13}  {value}" for name, value in facts.items() if value]
        return "\n".join([self.key, *lines, f"  {self.doc}"])


def all_settings() -> list[SettingInfo]:
    """All settings, section by section."""
    schema = Experiment.model_json_schema()
    found = []
    for name, tree in schema["properties"].items():
        if "$ref" in tree:
            section = schema["$defs"][tree["$ref"].rpartition("/")[2]]
            found += [_info(f"{name}.{key}", inner) for key, inner in section["properties"].items()]
        else:
            found.append(_info(name, tree))
    return found


def find(key: str) -> list[SettingInfo]:
    """The setting of this key, or all of a section."""
    found = [info for info in all_settings() if info.key == key or info.key.startswith(f"{key}.")]
    if not found:
        raise SettingError(unknown_key(key))
    return found


def page() -> str:
    """All settings as a page in Markdown."""
    lines = ["# Settings", "", "Made by `cpfl settings --markdown`. `cpfl settings KEY` explains a single setting.", ""]
    lines += [
        "A setting that is given and has no effect is refused; only with cohorts = 1 a message says that "
        "distillation.* has none. Keys are what `--set` takes."
    ]
    section = None
    for info in all_settings():
        name = info.key.rpartition(".")[0]
        if name != section:
            section, kind = name, Experiment.model_fields[name].annotation if name else Experiment
            lines += ["", f"## {name or 'experiment'}", "", str(kind.__doc__), ""]
            lines += ["| setting | default | allowed | what it is |", "|---|---|---|---|"]
        effect = f" Has an effect with {info.effect}." if info.effect else ""
        row = (f"`{info.key}`", f"`{as_text(info.default)}`", info.allowed or info.type, info.doc + effect)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join(lines) + "\n"


def as_text(default: Any) -> str:
    """A default as it is written in an experiment file."""
    return "none" if default is None else json.dumps(default, ensure_ascii=False)


def _allowed(tree: dict[str, Any]) -> str:
    """The range of a number, in words; empty: there is none."""
    found = ", ".join(text.format(_number(tree[limit])) for limit, text in _LIMITS.items() if limit in tree)
    smallest = [one["minimum"] for one in tree.get("anyOf", ()) if "minimum" in one]
    return found.replace("0 or more", f"0, or {_number(smallest[0])} or more", 1) if smallest else found


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _info(key: str, tree: dict[str, Any]) -> SettingInfo:
    """A setting from its part of the JSON schema."""
    named = [one for one in vars(choices).values() if isinstance(one, Registry) and one.key == key]
    if named:
        name, allowed = "name", f"{', '.join(named[0].names)}, or module:Class"
    elif "enum" in tree:
        name, allowed = "choice", ", ".join(tree["enum"])
    else:
        name = _TYPES[tree["type"] if "type" in tree else tree["anyOf"][0]["type"]]
        allowed = _allowed(tree)
    default = fields()[key].get_default(call_default_factory=True)
    doc, effect = " ".join(tree["description"].split()), "; ".join(conditions(key))
    return SettingInfo(key, name, default, allowed, effect, doc)
