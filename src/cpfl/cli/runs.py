"""Commands that make runs and use their models: run, resume, distill, export, predict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpfl.cli import options, sweeps
from cpfl.errors import SettingError

if TYPE_CHECKING:
    from cpfl.settings import Experiment
    from cpfl.terminal import RunView

DistillationName = Annotated[str, typer.Option("--distillation", help="Name of a later distillation of the run.")]
NOTABLE = 10.0  # points by which a student may be below the ensemble before a hint is shown


def run(
    experiment: options.ExperimentName,
    settings: options.Settings = None,
    out: Annotated[Path | None, options.PathOption(help="The run folder. Default: a new one in runs/.")] = None,
    data: options.DataFolder = None,
    engine: options.EngineName = "auto",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment: assign clients to cohorts, train the cohorts, distill their models into one.

    Example: cpfl run digits --set cohorts=8
    """
    from cpfl.settings import experiment_file

    chosen = experiment_file.load(experiment, settings or [])
    options.at_once(f"{chosen.name}: {chosen.clients} clients, n = {chosen.cohorts}, seed {chosen.seed}")

    from cpfl import api

    arguments = options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, track)
    with _view(as_json, chosen) as callback:
        finished = api.run(chosen, out=out, callback=callback, **arguments)
    show(finished.summary, finished.path, as_json)


def resume(
    path: Annotated[Path, options.PathArgument(metavar="DIR", help="A run folder, or the folder of a sweep.")],
    data: options.DataFolder = None,
    engine: options.EngineName = "",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    jobs: options.Jobs = 1,
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Resume a run or a whole sweep that was interrupted. The result is that of an uninterrupted run.

    Example: cpfl resume runs/20260301-120000-digits-n4-seed90
    """
    options.at_once(f"resume {path}")

    from cpfl import api
    from cpfl.runs.folder import RunFolder
    from cpfl.sweep import grid

    arguments = options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, track)
    if (path / grid.FILE).is_file():
        sweeps.run_sweep(path, path, jobs, as_json, arguments)
        return
    if jobs > 1:
        raise SettingError(f"--jobs {jobs} is for the runs of a sweep, and {path} is no sweep")
    folder = RunFolder.open(path)
    experiment = folder.experiment()  # first: it says what is wrong with a file that cannot be read
    if folder.verify().summary() is not None:
        (options.notify if as_json else options.say)(f"{path} is finished already")
    with _view(as_json, experiment) as callback:
        finished = api.resume(path, callback=callback, **arguments)
    show(finished.summary, finished.path, as_json)


def distill(
    path: options.RunPath,
    at: Annotated[str, typer.Option(help="Distill the models of this virtual time, such as 10h.")] = "",
    quorum: Annotated[
        float | None, typer.Option(help="Distill the models of the time when this share of the cohorts had stopped.")
    ] = None,
    unfinished: Annotated[str, typer.Option(help="Models of cohorts that had not stopped: latest or drop.")] = "",
    weights: Annotated[str, typer.Option(help="Weights of the cohorts: labels or uniform.")] = "",
    aggregation: Annotated[
        str, typer.Option(help="What is averaged over the cohorts: probabilities, logits or log-probabilities.")
    ] = "",
    recipe: Annotated[str, typer.Option(help="cpfl or paper.")] = "",
    student: Annotated[str, typer.Option(help="Another model for the student.")] = "",
    settings: options.Settings = None,
    name: Annotated[str, typer.Option(help="Name of the distillation. Default: made from its settings.")] = "",
    data: options.DataFolder = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Distill a run again, finished or still running, without training its cohorts again.

    Example: cpfl distill DIR --at 10h; cpfl distill DIR --quorum 0.75 --weights uniform
    """
    options.at_once(f"distill {path}")

    from cpfl import api
    from cpfl.runs.folder import RunFolder
    from cpfl.settings import experiment_file

    changes: dict[str, Any] = {}
    for key, value in experiment_file.parse_assignments(settings or []).items():
        if not key.startswith("distillation."):
            raise SettingError(f"distill only takes settings of distillation, such as distillation.epochs, not {key}")
        changes[key.removeprefix("distillation.")] = value
    named = {"at": at, "quorum": quorum, "unfinished": unfinished, "weights": weights, "aggregation": aggregation}
    named |= {"recipe": recipe, "student": student}
    changes |= {key: value for key, value in named.items() if value not in ("", None)}
    experiment = RunFolder.open(path).experiment()
    with _view(as_json, experiment, api.changed_distillation(experiment, changes).epochs) as callback:
        summary = api.distill(path, name=name, data=data, device=device, callback=callback, **changes)
    show(summary, Path(summary.pop("path")), as_json)


def export(
    path: options.RunPath,
    out: Annotated[
        Path | None,
        options.PathOption(help="Folder to write to, outside of runs. Default: export/ in the run folder."),
    ] = None,
    onnx: Annotated[bool, typer.Option(help="Also write ONNX.")] = True,
    distillation: DistillationName = "",
    as_json: options.AsJson = False,
) -> None:
    """Write the global model as safetensors and ONNX.

    Example: cpfl export DIR --out model
    """
    from cpfl.inference.global_model import export as write

    written = write(path, out, distillation=distillation, onnx=onnx)
    if as_json:
        options.show_json(written)
    else:
        options.say("\n".join(map(str, written)))


def predict(
    path: options.RunPath,
    images: Annotated[Path, options.PathArgument(metavar="IMAGES", help="A folder of images, or one image.")],
    distillation: DistillationName = "",
    as_json: options.AsJson = False,
) -> None:
    """Classify images with the global model. Images of other sizes are resized.

    Example: cpfl predict DIR photos
    """
    from cpfl.inference.global_model import predict as classify

    rows = list(classify(path, images, distillation))
    if as_json:
        options.show_json(rows)
    else:
        if "name" in rows[0]:
            cells = [(row["image"], row["name"], f"{100 * row['probability']:.1f} %") for row in rows]
            options.show_table(cells, ("image", "class"), ("probability",))
        else:
            options.show_table([(row["image"], str(row["answer"])) for row in rows], ("image", "answer"), ())


def _view(as_json: bool, experiment: Experiment, epochs: int | None = None) -> RunView:
    from cpfl.terminal import RunView

    return RunView(options.notes if as_json else options.console, experiment, epochs or experiment.distillation.epochs)


def show(summary: Mapping[str, Any], path: Path, as_json: bool) -> None:
    """Print a run's summary as text or JSON."""
    if as_json:
        options.show_json({**summary, "path": path})
        return
    several, metric = len(summary["teachers"]) > 1, summary["metric"]
    distilled = several and summary["distill_seconds"] > 0  # else the mean of the cohort models is the result
    teachers = f"{metric} {summary['teacher_accuracy_mean']:.2f} ± {summary['teacher_accuracy_std']:.2f} %"
    lines = [
        (
            "global model",
            f"{metric} {summary['student_accuracy']:.2f} % on the test set{'' if distilled else ', not distilled'}",
        ),
        *(
            [
                ("cohort models", teachers),
                ("ensemble", f"{metric} {summary['ensemble_accuracy']:.2f} %"),
                *([("their mean", f"{metric} {merged:.2f} %")] if (merged := summary.get("merged_accuracy")) else []),
            ]
            if several
            else []
        ),
        ("time" if summary.get("engine") == "flower" else "virtual time", f"{summary['hours']:.2f} h"),
        ("CPU time" if summary.get("engine") == "flower" else "virtual CPU", f"{summary['cpu_hours']:.2f} h"),
        ("traffic", f"{summary['comm_gb']:.3f} GB{_by_link(summary)}"),
        ("rounds", f"{summary['rounds']:,}"),
        *([("distilled in", f"{summary['distill_seconds']:.1f} s")] if distilled else []),
    ]
    if summary["wasted_cpu_hours"]:
        share = summary["wasted_cpu_hours"] / (summary["cpu_hours"] or math.inf)
        again = f", {summary['repeats']:,} rounds were repeated" if summary["repeats"] else ""
        lines.append(("wasted", f"{summary['wasted_cpu_hours']:.2f} h of the CPU time ({share:.0%}){again}"))
    if summary["cut_off"]:
        cohorts = f"{summary['cut_off']} cohort{'s' * (summary['cut_off'] > 1)}"
        lines.append(("cut off", f"{cohorts} by max_rounds, before converging"))
    if distilled and summary["student_accuracy"] < summary["ensemble_accuracy"] - NOTABLE:
        hint = "the student is far below the ensemble: raise distillation.epochs or lower its batch_size"
        lines.append(("hint", hint))
    for name, value in [*lines, ("run folder", path)]:
        options.say(f"{name:<14} {value}")


def _by_link(summary: Mapping[str, Any]) -> str:
    """How much of the traffic is whose; with one cohort its server is the global one."""
    if len(summary["by_cohort"]) == 1 or summary.get("global_gb") is None:
        return ""
    return f", of which {summary['global_gb']:.3g} GB between cohort servers and the global one"
