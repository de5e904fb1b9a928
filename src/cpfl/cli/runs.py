"""Commands that make runs and use their models: run, resume, distill, export, predict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpfl.cli import options, sweeps, tune
from cpfl.errors import SettingError

if TYPE_CHECKING:
    from cpfl.settings import Experiment
    from cpfl.terminal import RunView

DistillationName = Annotated[str, typer.Option("--distillation", help="Name of a later distillation of the run.")]


def run(
    experiment: options.ExperimentName,
    cohorts: Annotated[
        int | None, typer.Option("--cohorts", "-n", min=1, help="Number of cohorts n. Default: the experiment's.")
    ] = None,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, options.PathOption("--out", "-o", help="The run folder. Default: a new one in runs/.")
    ] = None,
    data: options.DataFolder = None,
    engine: options.EngineName = "auto",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    track: options.Track = None,
    download: options.Download = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment: assign clients to cohorts, train the cohorts, distill their models into one.

    Example: cpfl run digits -n 8 --set snapshots=30m
    """
    from cpfl.settings import experiment_file

    if cohorts is not None:
        if "cohorts" in experiment_file.parse_assignments(settings or []):
            raise SettingError("the number of cohorts is given twice: by --cohorts and by --set cohorts")
        settings = [*(settings or []), f"cohorts={cohorts}"]
    chosen = experiment_file.load(experiment, settings or [])
    options.at_once(f"{chosen.name}: {chosen.clients} clients, n = {chosen.cohorts}, seed {chosen.seed}")

    from cpfl import api

    arguments = options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, track)
    arguments["download"] = options.may_download(download)
    with _view(as_json, quiet, verbose, chosen) as callback:
        finished = api.run(chosen, out=out, callback=callback, verbose=False, **arguments)
    show(finished.summary, finished.path, as_json)
    _advise(finished.path, as_json)


def resume(
    path: Annotated[Path, options.PathArgument(metavar="DIR", help="The folder of a run, a sweep or a tune.")],
    data: options.DataFolder = None,
    engine: options.EngineName = "",
    device: options.Device = "auto",
    workers: options.Workers = 0,
    address: options.Address = "",
    gpu_share: options.GpuShare = 1.0,
    node_data: options.NodeData = "",
    jobs: options.Jobs = 1,
    track: options.Track = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Resume a run, a whole sweep or a tune that was interrupted. The result is that of an uninterrupted run.

    Example: cpfl resume runs/20260301-120000-digits-n4-seed90
    """
    options.at_once(f"resume {path}")

    from cpfl import api
    from cpfl.runs.folder import RunFolder
    from cpfl.sweeps import grid
    from cpfl.tuning import result

    arguments = options.run_arguments(data, engine, device, workers, address, gpu_share, node_data, track)
    if (path / grid.FILE).is_file():
        sweeps.run_sweep(path, path, jobs, as_json, quiet, arguments)
        return
    if (path / result.FILE).is_file():
        tune.resume_tune(path, jobs, as_json, quiet, arguments)
        return
    if jobs > 1:
        raise SettingError(f"--jobs {jobs} is for the runs of a sweep, and {path} is no sweep")
    folder = RunFolder.open(path)
    experiment = folder.experiment()  # first: it says what is wrong with a file that cannot be read
    if folder.verify().summary() is not None:
        (options.notify if as_json else options.say)(f"{path} is finished already")
    with _view(as_json, quiet, verbose, experiment) as callback:
        finished = api.resume(path, callback=callback, verbose=False, **arguments)
    show(finished.summary, finished.path, as_json)
    _advise(finished.path, as_json)


def distill(
    path: options.RunPath,
    at: Annotated[str, typer.Option(help="Distill the models of this virtual time, such as 10h.")] = "",
    quorum: Annotated[
        float | None, typer.Option(help="Distill the models of the time when this share of the cohorts had stopped.")
    ] = None,
    unfinished: Annotated[
        str, typer.Option(**options.one_of("latest", "drop"), help="Models of cohorts that had not stopped.")
    ] = "",
    weights: Annotated[
        str, typer.Option(**options.one_of("labels", "uniform", "module:Class"), help="Weights of the cohorts.")
    ] = "",
    aggregation: Annotated[
        str,
        typer.Option(
            **options.one_of("probabilities", "logits", "log-probabilities", "module:Class"),
            help="What is averaged over the cohorts.",
        ),
    ] = "",
    recipe: Annotated[
        str, typer.Option(**options.one_of("cpfl", "paper"), help="Defaults of all other settings of the distillation.")
    ] = "",
    student: Annotated[str, typer.Option(help="Another model for the student.")] = "",
    settings: options.Settings = None,
    name: Annotated[str, typer.Option(help="Name of the distillation. Default: made from its settings.")] = "",
    data: options.DataFolder = None,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
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
    epochs = api.changed_distillation(experiment, changes).epochs
    with _view(as_json, quiet, verbose, experiment, epochs) as callback:
        summary = api.distill(path, name=name, data=data, device=device, callback=callback, **changes)
    show(summary, Path(summary.pop("path")), as_json)


def export(
    path: options.RunPath,
    out: Annotated[
        Path | None,
        options.PathOption(
            "--out", "-o", help="Folder to write to, outside of runs. Default: export/ in the run folder."
        ),
    ] = None,
    onnx: Annotated[
        bool | None, typer.Option("--onnx/--no-onnx", help="Also write ONNX. Default: if the extra onnx is installed.")
    ] = None,
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
    if onnx is None and not any(path.suffix == ".onnx" for path in written):
        options.notify("model.onnx is not written: it needs two more packages, pip install 'cpfl[onnx]'")


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


def _view(as_json: bool, quiet: bool, verbose: bool, experiment: Experiment, epochs: int | None = None) -> RunView:
    from cpfl.terminal import RunView

    console = options.progress_console(as_json, quiet)
    return RunView(console, experiment, epochs or experiment.distillation.epochs, every_round=verbose)


def _advise(path: Path, as_json: bool) -> None:
    """Say what can be concluded from one run, and which command comes next."""
    from cpfl.reports.advice import advise_runs

    if not as_json:
        options.say("\n".join(advice.text() for advice in advise_runs([path])))


def show(summary: Mapping[str, Any], path: Path, as_json: bool) -> None:
    """Print a run's summary as text or JSON."""
    from cpfl.inference import outcome

    if as_json:
        options.show_json({**summary, "path": path})
        return
    for name, value in [*outcome.lines(summary), ("run folder", path)]:
        options.say(f"{name:<14} {value}")
