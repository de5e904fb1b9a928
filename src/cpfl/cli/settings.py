"""The command that explains the settings of an experiment: settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from cpfl.cli.options import console, say, show_json

if TYPE_CHECKING:
    from cpfl.settings.describe import SettingInfo


def settings(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A setting, such as federation.server, or a section. Default: all.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema of all settings.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
) -> None:
    """List all settings of an experiment, or explain one of them or one section.

    Example: cpfl settings; cpfl settings federation.server
    """
    from cpfl.settings import Experiment, describe

    if key:
        found = describe.find(key)
    if as_json:
        show_json(Experiment.model_json_schema())
    elif markdown:
        print(describe.page(), end="")
    elif key:
        say("\n\n".join(map(_explained, found)))
    else:
        sections: dict[str, list[SettingInfo]] = {}
        for info in describe.all_settings():
            sections.setdefault(info.key.rpartition(".")[0], []).append(info)
        for section, infos in sections.items():
            console.print(_overview(section, infos))


def _overview(section: str, infos: list[SettingInfo]) -> Table:
    key = Column("setting", no_wrap=True)
    table = Table(key, "default", "what it is", title=section or "experiment", title_justify="left")
    for info in infos:
        table.add_row(*map(Text, (info.key, _text(info.default), info.doc.partition(". ")[0].removesuffix("."))))
    return table


def _explained(info: SettingInfo) -> str:
    effect = f"with {info.effect}" if info.effect else "always"
    facts = {"type": info.type, "default": _text(info.default), "allowed": info.allowed, "has an effect": effect}
    lines = [f"  {name:<13}  {value}" for name, value in facts.items() if value]
    return "\n".join([info.key, *lines, f"  {info.doc}"])


def _text(default: Any) -> str:
    """A default as it is written in an experiment file."""
    return "none" if default is None else json.dumps(default, ensure_ascii=False)
