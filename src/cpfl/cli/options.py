"""Options that several commands share, and how commands print. Imports nothing heavy: every help text needs it."""

import glob
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from cpfl.errors import SettingError, printable
from cpfl.user_files import expanded

WIDE = 160


def _console(stderr: bool) -> Console:
    """A terminal in its own width; files and pipes wide enough for every table. Text is never markup: users name
    folders, classes and settings."""
    plain: dict[str, Any] = {"stderr": stderr, "markup": False, "highlight": False, "emoji": False}
    found = Console(**plain)
    return found if found.is_terminal else Console(**plain, width=WIDE)


console = _console(stderr=False)
notes = _console(stderr=True)


class UserPath(click.Path):
    """A path as a user types it: a shell leaves the ~ of --out=~/x to the program."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, with ~ replaced."""
        if value == "":
            self.fail("it is empty: the name of a file or folder is needed", param, ctx)
        return expanded(Path(os.fsdecode(super().convert(value, param, ctx))), "the path")


PathOption = partial(typer.Option, click_type=UserPath())
PathArgument = partial(typer.Argument, click_type=UserPath())
ENGINES = ("auto", "lanes", "workers", "reference", "ray")
TRACKERS = ("tensorboard", "mlflow", "wandb")


def _presets(incomplete: str) -> list[str]:
    """Experiments, for a shell that completes a word."""
    from cpfl.settings import experiment_file

    return [*experiment_file.presets(), *map(str, Path().glob(f"{glob.escape(incomplete)}*.toml"))]


def _keys() -> list[str]:
    """Settings, for a shell that completes a word."""
    from cpfl.settings import describe

    return [f"{info.key}=" for info in describe.all_settings()]


def one_of(*words: str) -> dict[str, Any]:
    """The allowed words of an option, for its help and for a shell that completes a word."""
    return {"metavar": "|".join(words), "autocompletion": lambda: [word for word in words if ":" not in word]}


Words = list[str] | None
Settings = Annotated[
    Words,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", autocompletion=_keys,
        help="Override a setting; may be repeated. cpfl settings lists them with what is allowed.",
    ),
]  # fmt: skip
DataFolder = Annotated[Path | None, PathOption("--data", "-d", help="Data sets. Default: $CPFL_DATA, then the cache.")]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", "-e", **one_of(*ENGINES),
        help="auto: lanes on a GPU, workers on a CPU. lanes: many clients at once. workers: all cores. "
        "reference: one client at a time. ray: cohorts on a cluster. All agree up to rounding.",
    ),
]  # fmt: skip
Address = Annotated[str, typer.Option("--address", help="Engine ray: host:port of the head, or auto. Else: a new one.")]
GpuShare = Annotated[float, typer.Option("--gpu-share", help="Engine ray: the share of a GPU for each worker.")]
NodeData = Annotated[str, typer.Option("--node-data", help="Engine ray: a data folder that all nodes can read.")]
Workers = Annotated[
    int, typer.Option("--workers", "-w", min=0, help="Processes on CPUs or a cluster; 0: all that fit.")
]
Track = Annotated[Words, typer.Option("--track", **one_of(*TRACKERS), help="Log there, too; may be repeated.")]
Jobs = Annotated[
    int, typer.Option("--jobs", "-j", min=1, help="Processes that make the runs, each several side by side.")
]
Download = Annotated[bool, typer.Option("--download", help="Download data sets that are not on this machine.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes: only the result and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every round and every epoch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ExperimentName = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", autocompletion=_presets, help="A preset (cpfl presets) or a TOML file.")
]
RunPath = Annotated[Path, PathArgument(metavar="DIR", help="A run folder.")]


def run_arguments(
    data: Path | None,
    engine: str,
    device: str,
    workers: int,
    address: str,
    gpu_share: float,
    node_data: str,
    track: Words,
) -> dict[str, Any]:
    """Options of run, resume and sweep as arguments of `cpfl.run`."""
    from cpfl.engines.ray import ClusterConfig

    found = {"data": data, "engine": engine, "device": device, "workers": workers, "track": track or []}
    return {**found, "cluster": ClusterConfig(address, gpu_share, device, node_data)}


def may_download(wanted: bool) -> bool | Callable[[str], bool]:
    """The answer to whether data sets may be downloaded: a person at a terminal is asked."""

    def ask(question: str) -> bool:
        return typer.confirm(printable(question), err=True)

    return wanted or (ask if sys.stdin.isatty() and sys.stderr.isatty() else False)


def progress_console(as_json: bool, quiet: bool) -> Console:
    """Where progress is shown: beside JSON on standard error, and nowhere if quiet."""
    return Console(quiet=True) if quiet else notes if as_json else console


def say(text: str) -> None:
    """Print text to standard output as it is."""
    console.print(printable(text), soft_wrap=True)


def notify(text: str) -> None:
    """Print text to standard error as it is."""
    notes.print(printable(text), soft_wrap=True)


def at_once(text: str) -> None:
    """On a terminal, print what is about to happen before anything slow is imported: torch takes seconds."""
    if notes.is_terminal:
        notify(f"{text}: loading …")


def show_json(tree: Any) -> None:
    """Print JSON, alone on standard output; paths become texts."""
    print(json.dumps(tree, indent=2, default=str))


def show_table(
    rows: Iterable[Sequence[str]], texts: Sequence[str], numbers: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table: columns of texts on the left, and of numbers, aligned to the right."""
    heading = printable(title) or None
    table = Table(*(Column(head, overflow="fold") for head in texts), title=heading, title_justify="left")
    for head in numbers:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def whole_numbers(text: str, option: str) -> list[int]:
    """1,2,4 as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes whole numbers with commas, such as 1,2,4, not {text!r}") from None


def values(pairs: list[str], option: str) -> dict[str, list[Any]]:
    """Several values for each key, from `key=value,value`.

    The values are the items of a TOML array; bare words are strings. `--over data.mean=[0.5],[0.4]` is two values,
    but `--set data.mean=[0.5,0.5]` is one.
    """
    from cpfl.settings.experiment_file import parse_list

    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, sign, text = (part.strip() for part in pair.partition("="))
        if not sign or not key or not text:
            raise SettingError(f"{option} takes key=value,value, such as data.alpha=0.1,1, not {pair!r}")
        if key in found:
            raise SettingError(f"{option} {key} is given twice: put all its values after one, with commas")
        found[key] = parse_list(text)
    return found
