"""Options that several commands share, and how they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cpfl.errors import SettingError


def _console(stderr: bool) -> Console:
    """A terminal as wide as it is; files and pipes wide enough for every table."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=WIDE)


WIDE = 160
console = _console(stderr=False)
notes = _console(stderr=True)

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Where data sets lie; else $CPFL_DATA, then the cache folder.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 …")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="reference: one client at a time; lanes: many at once, equal to rounding; auto: lanes on a GPU.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
ExperimentName = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A preset's name or a TOML file.")]
RunPath = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]


def show_json(tree: Any) -> None:
    """Machine-readable output, alone on standard output."""
    print(json.dumps(tree, indent=2))


def whole_numbers(text: str, option: str) -> list[int]:
    """1,2,4 as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes whole numbers with commas, such as 1,2,4, not {text!r}") from None
