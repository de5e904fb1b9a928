"""Commands that make and look at runs: run, sweep, resume, distill, list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import cpfl
from cpfl import api, experiment_file
from cpfl.cli.options import (
    AsJson,
    DataFolder,
    Device,
    EngineName,
    ExperimentName,
    RunPath,
    Settings,
    console,
    notes,
    show_json,
    whole_numbers,
)
from cpfl.errors import SettingError
from cpfl.report import tables
from cpfl.runs.folder import RunFolder
from cpfl.sweep import default_folder
from cpfl.terminal import Terminal

FAR = 10.0  # points that a student may lack before a hint is worth a line


def add_to(app: typer.Typer) -> None:
    """Put the commands into the program."""
    for command in (run, sweep, resume, distill):
        app.command()(command)
    app.command("list")(list_runs)


def run(
    experiment: ExperimentName,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; else a new one in runs/.")] = None,
    data: DataFolder = None,
    engine: EngineName = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Run one experiment: plan, federate, distil.

    Example: cpfl run digits --set cohorts=8
    """
    chosen = experiment_file.load(experiment, settings or [])
    with _watch(as_json, chosen) as watcher:
        finished = api.run(chosen, out=out, data=data, engine=engine, device=device, watcher=watcher)
    _show(finished.summary, finished.path, as_json)


def sweep(
    experiment: ExperimentName,
    cohorts: Annotated[str, typer.Option(help="Values of n, such as 1,2,4,8.")],
    seeds: Annotated[str, typer.Option(help="Seeds, such as 90,91,92; else the experiment's.")] = "",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; else a new one in runs/.")] = None,
    data: DataFolder = None,
    engine: EngineName = "auto",
    device: Device = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, a process each.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run an experiment over n and seeds, and show what n costs and gains. What is finished is not done again.

    Example: cpfl sweep digits --cohorts 1,2,4,8 --jobs 2
    """
    base = experiment_file.load(experiment, settings or [])
    where = out or default_folder(base)
    place = notes if as_json else console
    numbers = whole_numbers(cohorts, "--cohorts")
    chosen_seeds = whole_numbers(seeds, "--seeds") if seeds else None
    planned = len(numbers) * len(chosen_seeds or [base.seed])
    done: list[Mapping[str, Any]] = []

    with place.status("") as status:

        def on_wait() -> None:
            rounds = sum(file.read_bytes().count(b"\n") for file in where.glob("*/rounds/*.jsonl"))
            status.update(f"{len(done)} of {planned} runs finished · {rounds:,} rounds")

        def on_run(finished: api.Run) -> None:
            summary = finished.summary
            done.append(summary)
            place.print(
                f"n = {summary['cohorts']}, seed {summary['seed']}: {summary['student_accuracy']:.1f} %, "
                f"{summary['hours']:.2f} h, {summary['cpu_hours']:.1f} CPU h  ({summary['wall_seconds']:.1f} s)",
                highlight=False,
            )
            on_wait()

        cpfl.sweep(
            base, cohorts=numbers, seeds=chosen_seeds, out=where, data=data, engine=engine, device=device, jobs=jobs,
            on_run=on_run, on_wait=on_wait,
        )  # fmt: skip
    if as_json:
        show_json({"runs": done, "by_cohorts": tables.by_cohorts(done), "path": str(where)})
    else:
        console.print(tables.trade_off(done, console.width))
    from cpfl.report import figures  # takes half a second that other commands need not pay

    picture = figures.save(figures.trade_off(done, f"{base.name}: what n costs and gains"), where / "trade-off.png")
    if not as_json:
        console.print(f"runs:    {where}\npicture: {picture}", highlight=False, soft_wrap=True)


def resume(
    path: RunPath,
    data: DataFolder = None,
    engine: EngineName = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was interrupted; it ends as it would have.

    Example: cpfl resume runs/20260301-120000-digits-n4-seed90
    """
    folder = RunFolder.open(path)
    if folder.summary() is not None:
        (notes if as_json else console).print(f"{path} is finished already", highlight=False, soft_wrap=True)
    with _watch(as_json, folder.experiment()) as watcher:
        finished = api.resume(path, data=data, engine=engine, device=device, watcher=watcher)
    _show(finished.summary, finished.path, as_json)


def distill(
    path: RunPath,
    at: Annotated[str, typer.Option(help="Distil the models of this virtual time, such as 10h.")] = "",
    quorum: Annotated[float | None, typer.Option(help="Distil when this share of the cohorts has stopped.")] = None,
    unfinished: Annotated[str, typer.Option(help="Cohorts that had not stopped: latest or drop.")] = "",
    weights: Annotated[str, typer.Option(help="labels or uniform.")] = "",
    join: Annotated[str, typer.Option(help="logits or probabilities.")] = "",
    recipe: Annotated[str, typer.Option(help="paper or consistent.")] = "",
    student: Annotated[str, typer.Option(help="Another model for the student.")] = "",
    settings: Settings = None,
    name: Annotated[str, typer.Option(help="What to call it; else after its settings.")] = "",
    data: DataFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Distil a run again, finished or still running, without training.

    Example: cpfl distill DIR --at 10h; cpfl distill DIR --quorum 0.75 --weights uniform
    """
    changes: dict[str, Any] = {}
    for key, value in experiment_file.parse_assignments(settings or []).items():
        if not key.startswith("distillation."):
            raise SettingError(f"distill only takes settings of distillation, such as distillation.epochs, not {key}")
        changes[key.removeprefix("distillation.")] = value
    named = {"at": at, "quorum": quorum, "unfinished": unfinished, "weights": weights, "join": join, "recipe": recipe}
    named["student"] = student
    changes |= {key: value for key, value in named.items() if value not in ("", None)}
    experiment = RunFolder.open(path).experiment()
    with _watch(as_json, experiment, changes.get("epochs")) as watcher:
        outcome = api.distill(path, name=name, data=data, device=device, watcher=watcher, **changes)
    _show(outcome, Path(outcome.pop("path")), as_json)


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs lie.")] = api.RUNS, as_json: AsJson = False
) -> None:
    """List the runs in a folder, finished or not.

    Example: cpfl list runs
    """
    rows = tables.overview(tables.find_runs(folder))
    if as_json:
        show_json(rows)
    elif rows:
        console.print(tables.run_list(rows))
    else:
        console.print(f"there are no runs in {folder}", highlight=False, soft_wrap=True)


def _watch(as_json: bool, experiment: cpfl.Experiment, epochs: int | None = None) -> Terminal:
    place: Console = notes if as_json else console
    return Terminal(place, experiment.cohorts, epochs or experiment.distillation.epochs)


def _show(summary: Mapping[str, Any], path: Path, as_json: bool) -> None:
    if as_json:
        show_json({**summary, "path": str(path)})
        return
    several = len(summary["teachers"]) > 1
    teachers = f"{summary['teacher_accuracy_mean']:.2f} ± {summary['teacher_accuracy_std']:.2f} %"
    lines = [
        (
            "global model",
            f"{summary['student_accuracy']:.2f} % of the test set" + ("" if several else ", not distilled"),
        ),
        *([("cohort models", teachers), ("ensemble", f"{summary['ensemble_accuracy']:.2f} %")] if several else []),
        ("virtual time", f"{summary['hours']:.2f} h"),
        ("CPU time", f"{summary['cpu_hours']:.2f} h"),
        ("traffic", f"{summary['comm_gb']:.3f} GB"),
        ("rounds", f"{summary['rounds']:,}"),
        *([("distilled in", f"{summary['distill_seconds']:.1f} s")] if several else []),
        ("run folder", str(path)),
    ]
    if summary["cut_off"]:
        lines.insert(-1, ("cut off", f"{summary['cut_off']} cohorts by max_rounds, before they had converged"))
    if several and summary["student_accuracy"] < summary["ensemble_accuracy"] - FAR:
        lines.insert(
            -1, ("hint", "the student is far below the ensemble: raise distillation.epochs, or lower its batch_size")
        )
    for name, value in lines:
        console.print(f"{name:<14} {value}", highlight=False, soft_wrap=True)
