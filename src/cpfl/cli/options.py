"""Options that several commands share, and how they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cpfl import experiment_file
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
        help="auto: lanes on a GPU, workers on a CPU. lanes: many clients at once; workers: all cores; "
        "reference: one client at a time; ray: cohorts on a cluster. They agree to rounding.",
    ),
]
Address = Annotated[
    str, typer.Option("--address", help="Engine ray: host:port of a cluster's head, or auto; else one on this machine.")
]
GpuShare = Annotated[float, typer.Option("--gpu-share", help="Engine ray: the part of a GPU that a worker gets.")]
NodeData = Annotated[
    str, typer.Option("--node-data", help="Engine ray: a data folder that all nodes see; else data travel through Ray.")
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=0, help="Processes that train, on CPUs or a cluster; 0: all that fit. Never changes outcomes."
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Follow the run in tensorboard, mlflow or wandb too; may be repeated."),
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Runs of a sweep at a time, a process each.")]
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


def values(pairs: list[str], option: str) -> dict[str, list[Any]]:
    """`key=value,value` words: several values for each key.

    Not a part of --set, whose values may hold commas themselves: `--set data.mean=[0.5,0.5]` is one value. Here the
    values are the items of a TOML array, so `--over data.mean=[0.5],[0.4]` is two; bare words are strings.
    """
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, sign, text = (part.strip() for part in pair.partition("="))
        if not sign or not key or not text:
            raise SettingError(f"{option} takes key=value,value, such as data.alpha=0.1,1, not {pair!r}")
        if key in found:
            raise SettingError(f"{option} {key} is given twice: put all its values after one, with commas")
        found[key] = experiment_file.parse_list(text)
    return found
