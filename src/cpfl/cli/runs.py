"""Commands that make and look at runs: run, resume, distill, list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import cpfl
from cpfl import api, experiment_file
from cpfl.cli import sweeps
from cpfl.cli.options import (
    Address,
    AsJson,
    DataFolder,
    Device,
    EngineName,
    ExperimentName,
    GpuShare,
    Jobs,
    NodeData,
    RunPath,
    Settings,
    Track,
    Workers,
    console,
    notes,
    show_json,
)
from cpfl.engines.ray import Place
from cpfl.errors import CpflError, SettingError
from cpfl.report import tables
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.sweep import plan as sweep_plan
from cpfl.terminal import RunView

FAR = 10.0  # points that a student may lack before a hint is worth a line


def add_to(app: typer.Typer) -> None:
    """Put the commands into the program."""
    for command in (run, sweeps.sweep, resume, distill):
        app.command()(command)
    app.command("list")(list_runs)


def run(
    experiment: ExperimentName,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; else a new one in runs/.")] = None,
    data: DataFolder = None,
    engine: EngineName = "auto",
    device: Device = "auto",
    workers: Workers = 0,
    address: Address = "",
    gpu_share: GpuShare = 1.0,
    node_data: NodeData = "",
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run one experiment: plan, federate, distil.

    Example: cpfl run digits --set cohorts=8
    """
    chosen = experiment_file.load(experiment, settings or [])
    with _watch(as_json, chosen) as watcher:
        finished = api.run(
            chosen,
            out=out,
            data=data,
            engine=engine,
            device=device,
            workers=workers,
            cluster=Place(address, gpu_share, device, node_data),
            watcher=watcher,
            track=track or (),
        )
    show(finished.summary, finished.path, as_json)


def resume(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or the folder of a sweep.")],
    data: DataFolder = None,
    engine: EngineName = "",
    device: Device = "auto",
    workers: Workers = 0,
    address: Address = "",
    gpu_share: GpuShare = 1.0,
    node_data: NodeData = "",
    jobs: Jobs = 1,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run, or a whole sweep, that was interrupted; it ends as it would have.

    Example: cpfl resume runs/20260301-120000-digits-n4-seed90
    """
    place = Place(address, gpu_share, device, node_data)
    if (path / sweep_plan.FILE).is_file():
        words = {"data": data, "engine": engine, "device": device, "workers": workers, "track": track or []}
        sweeps.go(path, path, jobs, as_json, {**words, "cluster": place})
        return
    folder = RunFolder.open(path)
    if folder.summary() is not None:
        (notes if as_json else console).print(f"{path} is finished already", highlight=False, soft_wrap=True)
    with _watch(as_json, folder.experiment()) as watcher:
        finished = api.resume(
            path,
            data=data,
            engine=engine,
            device=device,
            workers=workers,
            cluster=place,
            watcher=watcher,
            track=track or (),
        )
    show(finished.summary, finished.path, as_json)


def distill(
    path: RunPath,
    at: Annotated[str, typer.Option(help="Distil the models of this virtual time, such as 10h.")] = "",
    quorum: Annotated[float | None, typer.Option(help="Distil when this share of the cohorts has stopped.")] = None,
    unfinished: Annotated[str, typer.Option(help="Cohorts that had not stopped: latest or drop.")] = "",
    weights: Annotated[str, typer.Option(help="labels or uniform.")] = "",
    join: Annotated[str, typer.Option(help="probabilities, logits or log-probabilities.")] = "",
    recipe: Annotated[str, typer.Option(help="cpfl or paper.")] = "",
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
    with _watch(as_json, experiment, api.changed_distillation(experiment, changes).epochs) as watcher:
        outcome = api.distill(path, name=name, data=data, device=device, watcher=watcher, **changes)
    show(outcome, Path(outcome.pop("path")), as_json)


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs lie.")] = api.RUNS, as_json: AsJson = False
) -> None:
    """List the runs in a folder, finished or not, each with the students that were distilled from it later.

    Example: cpfl list runs
    """
    rows = [{**row, "distillations": _later(Path(row["path"]))} for row in tables.overview(tables.find_runs(folder))]
    if as_json:
        show_json(rows)
    elif rows:
        console.print(tables.run_list(shown for row in rows for shown in (row, *row["distillations"])))
    else:
        console.print(f"there are no runs in {folder}", highlight=False, soft_wrap=True)


def _later(path: Path) -> list[dict[str, Any]]:
    """Rows for the later distillations of a run."""
    rows = []
    for file in sorted(path.glob("distillations/*/summary.json")):
        row = {**dict.fromkeys(("cohorts", "seed", "rounds", "hours", "student_accuracy")), "path": str(file.parent)}
        try:
            found = files.read_json(file)
            row |= {key: found[key] for key in row.keys() & found.keys()}
            rows.append({**row, "state": "distilled again"})
        except CpflError as error:
            rows.append({**row, "state": f"damaged: {error}"})
    return rows


def _watch(as_json: bool, experiment: cpfl.Experiment, epochs: int | None = None) -> RunView:
    place: Console = notes if as_json else console
    return RunView(place, experiment, epochs or experiment.distillation.epochs)


def show(summary: Mapping[str, Any], path: Path, as_json: bool) -> None:
    """A run's outcome, for a person or as JSON."""
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
        ("time" if summary.get("engine") == "flower" else "virtual time", f"{summary['hours']:.2f} h"),
        ("CPU time", f"{summary['cpu_hours']:.2f} h"),
        ("traffic", f"{summary['comm_gb']:.3f} GB"),
        ("rounds", f"{summary['rounds']:,}"),
        *([("distilled in", f"{summary['distill_seconds']:.1f} s")] if several else []),
        ("run folder", str(path)),
    ]
    if summary.get("wasted_cpu_hours"):
        share = summary["wasted_cpu_hours"] / summary["cpu_hours"]
        again = f", {summary['repeats']:,} rounds were repeated" if summary["repeats"] else ""
        lines.insert(-1, ("wasted", f"{summary['wasted_cpu_hours']:.2f} h of the CPU time ({share:.0%}){again}"))
    if summary["cut_off"]:
        cohorts = f"{summary['cut_off']} cohort{'s' * (summary['cut_off'] > 1)}"
        lines.insert(-1, ("cut off", f"{cohorts} by max_rounds, before converging"))
    if several and summary["student_accuracy"] < summary["ensemble_accuracy"] - FAR:
        lines.insert(
            -1, ("hint", "the student is far below the ensemble: raise distillation.epochs, or lower its batch_size")
        )
    for name, value in lines:
        console.print(f"{name:<14} {value}", highlight=False, soft_wrap=True)
