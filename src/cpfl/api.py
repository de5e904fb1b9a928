"""The same from Python as from the command line: run, resume, distill, load_run."""

import inspect
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpfl import method, trackers
from cpfl.callbacks import Callback, CallbackList
from cpfl.data.federated import NO_PUBLIC
from cpfl.distillation.ensemble import check_distillation
from cpfl.distillation.outputs import TeacherOutputs
from cpfl.engines.base import Engine
from cpfl.engines.create import NAMES, check_engine, create_engine, resolve_engine, torch_device
from cpfl.engines.ray import ClusterConfig, resolve_cluster
from cpfl.errors import RunFolderError, SettingError
from cpfl.estimate import estimate
from cpfl.inference.run import Run
from cpfl.meetings.rules import meeting_rule
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.reload import check_snapshots, describe, reload_task, save_initial_models
from cpfl.settings import GIVEN, Distillation, Experiment, effects, experiment_file
from cpfl.settings.keywords import by_dotted_key
from cpfl.task.given import client_settings, with_clients
from cpfl.task.loading import MayDownload, absolute, check_public, given_arrays, load_task
from cpfl.task.task import Task, UserModel
from cpfl.terminal import following
from cpfl.user_files import expanded

RUNS = Path("runs")
ONE_COHORT = "cohorts = 1: nothing is distilled; of [distillation] only at, quorum and unfinished have an effect"


def run(
    experiment: str | Path | Experiment | Mapping[str, Any] | None = None,
    *,
    model: UserModel | Mapping[str, Any] | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    out: str | Path | None = None,
    data: str | Path | Mapping[str, Any] | None = None,
    engine: str | Engine = "auto",
    device: str = "auto",
    workers: int = 0,
    cluster: ClusterConfig | None = None,
    callback: Callback | None = None,
    track: Sequence[str] = (),
    verbose: bool | None = None,
    download: MayDownload = False,
    settings: Mapping[str, Any] | None = None,
    train_only: bool = False,
    **keywords: Any,
) -> Run:
    """Run one experiment, with your own model and arrays if you like.

    Parameters
    ----------
    experiment
        A preset, a TOML file, an Experiment, or a dict of its settings; without one, the defaults.
    settings, keywords
        Settings on top of it: `cohorts=4`, `federation={"lr": 0.05}`, or `settings={"federation.lr": 0.05}`. Those of
        the sections `data` and `model` are dicts, too.
    model
        An nn.Module, a class, or a function that builds one.
    train, test, public
        (inputs, labels) or (inputs, labels, {column: values}), a torch Dataset, a Hugging Face dataset or a frame; a
        dict, a list or a function with one of these for each client; inputs for `public`.
    out, data
        The run folder, and a folder with data sets.
    engine, device
        A name or an object of a subclass of `Engine`; cpu, cuda, cuda:1 …
    workers
        Processes on a CPU, else one for each core; results do not depend on their number.
    cluster
        The cluster of the engine ray, ClusterConfig("host:6379"); without one, this machine.
    callback, track
        What follows the run: a Callback, and trackers by name (tensorboard, mlflow, wandb).
    verbose
        Whether to show progress; None: in a terminal and in a notebook.
    download
        Whether data sets that are not on this machine may be downloaded; a function is asked, with a question.
    train_only
        Train the cohorts and distill nothing: the run stays unfinished until `resume` distills it.
    """
    trackers.check(track)
    if isinstance(model, Mapping):  # the section of settings, and no model
        model, keywords["model"] = None, model
    if isinstance(data, Mapping):
        data, keywords["data"] = None, data
    if isinstance(experiment, Mapping):
        settings, experiment = {**experiment, **(settings or {})}, None
    experiment = Experiment() if experiment is None else experiment
    settings = by_dotted_key(settings or {}, keywords, inspect.signature(run).parameters)
    given = {"model.name": model, "data.train": train, "data.public": public}
    changes = {**settings, **{key: GIVEN for key, value in given.items() if value is not None}}
    changes |= client_settings(train, experiment, settings)
    if isinstance(experiment, Experiment):
        effects.check([experiment], effects.given(experiment))
        chosen = experiment_file.with_settings(experiment, changes)
    else:
        chosen = experiment_file.load(experiment, settings=changes)
    check_public(chosen, experiment, settings)
    cluster, on_device = _hardware(engine, device, workers, cluster)
    path = expanded(Path(out), "out") if out is not None else RUNS / new_name(chosen)
    RunFolder.check_free(path)
    chosen = absolute(chosen)
    check_snapshots(chosen)
    with following(verbose, callback, chosen) as follower, ExitStack() as undo:
        notify = follower.on_message
        arrays = given_arrays(train, test, public, chosen, notify)
        chosen = with_clients(chosen, arrays)
        task = load_task(chosen, data, model, arrays, notify, download=download)
        check_distillation(chosen.distillation, task)
        meeting_rule(task, torch.device("cpu"))
        if chosen.cohorts == 1:  # no mistake: presets, and scripts over n, have the same settings for every n
            notify(ONE_COHORT)
        on_workers = engine == "ray"  # which may have other devices than this process: they decide
        if not on_workers:
            task = task.resolved(engine.device if isinstance(engine, Engine) else on_device.type)
            notify(f"precision {task.experiment.precision}; {estimate(task, on_device)}")
        resolved = resolve_engine(engine, task, on_device, notify)
        # What is wrong with a cluster is found before anything is written; other engines begin to work when made.
        if on_workers:
            engine = create_engine(engine, task, on_device, notify, workers, cluster)
            undo.callback(engine.close)
            task = task.resolved(engine.device)
            notify(f"precision {task.experiment.precision}; {estimate(task, on_device)}")
        folder = RunFolder.create(path, task.experiment, describe(task, data, resolved))
        undo.pop_all()
        chosen_engine = engine if isinstance(engine, Engine) else resolved
        make_engine = partial(create_engine, chosen_engine, task, on_device, notify, workers, cluster)
        execute(task, folder, make_engine, on_device, follower, track, "started", train_only)
    return Run(folder.path, model)


def resume(
    path: str | os.PathLike[str],
    *,
    model: UserModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    engine: str | Engine = "",
    device: str = "auto",
    workers: int = 0,
    cluster: ClusterConfig | None = None,
    callback: Callback | None = None,
    track: Sequence[str] = (),
    verbose: bool | None = None,
    train_only: bool = False,
) -> Run:
    """Continue a run that was interrupted; its results are those of an uninterrupted one.

    A model and arrays of your own must be given again; the other arguments are those of `run`.
    """
    trackers.check(track)
    folder = RunFolder.open(Path(path)).verify()
    if folder.summary() is not None:
        return Run(folder.path, model)
    named = bool(engine)
    if not engine:  # the one it started with: another one differs by rounding
        engine = folder.engine()
        if engine not in NAMES:
            remedy = "resume it from Python with engine=<your object>"
            if engine == "flower":
                remedy = "start the Flower app again with the same out"
            raise RunFolderError(f"{folder.path} was started with the engine {engine!r}: {remedy}")
    cluster, on_device = _hardware(engine, device, workers if named else min(workers, 1), cluster)
    experiment = folder.experiment()
    with following(verbose, callback, experiment) as follower:
        given = given_arrays(train, test, public, experiment, follower.on_message)
        task = reload_task(folder, data, model, given, follower.on_message)
        make_engine = partial(create_engine, engine, task, on_device, follower.on_message, workers, cluster)
        execute(task, folder, make_engine, on_device, follower, track, "resumed", train_only)
    return Run(folder.path, model)


def distill(
    path: str | os.PathLike[str],
    *,
    name: str = "",
    model: UserModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    device: str = "auto",
    callback: Callback | None = None,
    verbose: bool | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Distill a run again, finished or still running, without training: at="10h", quorum=0.75, weights="uniform" …"""
    own: dict[str, Any] = {"train": train, "test": test, "public": public, "data": data, "model": model}
    experiment = RunFolder.open(Path(path)).experiment()
    epochs = changed_distillation(experiment, settings).epochs
    with following(verbose, callback, experiment, epochs) as follower:
        return Distiller(path, device=device, callback=follower, **own)(settings, name)


class Distiller:
    """A run that is distilled again, as `distill` does it, several times: its task is loaded once."""

    outputs: TeacherOutputs | None = None
    """Set by the caller: what teachers answer is computed once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: UserModel | None = None,
        train: object = None,
        test: object = None,
        public: object = None,
        data: str | Path | None = None,
        device: str = "auto",
        callback: Callback | None = None,
    ) -> None:
        self.folder, self.device = RunFolder.open(Path(path)).verify(), device
        self._callback, self._model, self._data = callback or Callback(), model, data
        self._given = (train, test, public)
        self._tasks: dict[str, Task] = {}  # by the name of the student's model

    def __call__(
        self, settings: Mapping[str, Any], name: str = "", engine: Engine = method.NO_WORKERS
    ) -> dict[str, Any]:
        """Distill with these settings; the engine pauses between steps of the student. The summary, and its folder."""
        folder, callback, public = self.folder, self._callback, self._given[-1]
        changed = changed_distillation(folder.experiment(), settings)
        if name and (name.startswith(".") or not all(c.isalnum() or c in "-._" for c in name)):
            allowed = "letters, digits, '-', '_' and '.', not beginning with '.'"
            raise SettingError(f"name = {name!r} is not allowed: {allowed}")
        label = name or "-".join(f"{key}-{value}" for key, value in settings.items()) or "again"
        label = "".join(c if c.isalnum() or c in "-._" else "_" for c in label)
        if folder.experiment().cohorts == 1 and settings.keys() - {"at", "quorum", "unfinished"}:
            callback.on_message(ONE_COHORT)
        if folder.experiment().data.public == NO_PUBLIC and public is None:
            raise SettingError(f'{folder.path} has no public samples (data.public = "none"): give public, from Python')
        if changed.student not in self._tasks:
            given = given_arrays(*self._given, folder.experiment(), callback.on_message)
            more = (given, callback.on_message, changed.student, public is not None)
            self._tasks = {changed.student: reload_task(folder, self._data, self._model, *more)}
            self.outputs = self.outputs and TeacherOutputs()
        task = self._tasks[changed.student]
        check_distillation(changed, task)
        recorder = RunRecorder(folder, task.experiment, callback, folder.path / "distillations" / label)
        on_device = torch_device(self.device)
        try:
            teachers, outputs = recorder.teachers(changed), self.outputs
            outcome = method.distill(task, teachers, changed, on_device, recorder.on_epoch, engine, outputs)
            summary = recorder.save(outcome, distillation=changed.model_dump(), device=on_device.type)
        finally:
            recorder.unlock()
        return {**summary, "path": str(recorder.results)}


def changed_distillation(experiment: Experiment, changes: Mapping[str, Any]) -> Distillation:
    """The settings of another distillation: a given time replaces the run's quorum, a given quorum its time."""
    own = dict(changes)
    if own.get("at"):
        own.setdefault("quorum", 1.0)
    elif "quorum" in own:
        own.setdefault("at", "")
    if experiment.merges:  # it is distilled now
        final = experiment.meetings.model_copy(update={"final": "distill"})
        data = experiment.data.model_copy(update={"public": GIVEN})
        experiment = experiment.model_copy(update={"meetings": final, "data": data})
    return experiment_file.with_settings(experiment, {f"distillation.{k}": v for k, v in own.items()}).distillation


def load_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder for reading."""
    return Run(RunFolder.open(Path(path)).path)


def new_name(experiment: Experiment) -> str:
    """A folder name that sorts by time and is not taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.name}-n{experiment.cohorts}-seed{experiment.seed}"
    taken = sum(1 for _ in RUNS.glob(f"{name}*"))
    return f"{name}-{taken + 1}" if taken else name


def _hardware(
    engine: str | Engine, device: str, workers: int, cluster: ClusterConfig | None
) -> tuple[ClusterConfig, torch.device]:
    """The cluster and the device that these arguments mean, checked."""
    cluster = resolve_cluster(cluster, device)
    if isinstance(engine, Engine):
        if workers > 1:
            raise SettingError(f"workers = {workers} has no effect: an engine of your own is made with its own")
        return cluster, torch_device(cluster.device, engine.name)
    check_engine(engine, workers, cluster)
    on_device = torch_device(cluster.device, engine)
    if engine == "workers" and on_device.type != "cpu":
        raise SettingError("engine = 'workers' trains on the CPU: set device = 'cpu'")
    return cluster, on_device


def execute(
    task: Task,
    folder: RunFolder,
    make_engine: Callable[[], Engine],
    device: torch.device,
    callback: Callback,
    track: Sequence[str],
    event: str,
    train_only: bool = False,
) -> None:
    """Algorithm 1 into a run folder that this process holds alone."""
    followers = CallbackList(callback, *(trackers.Tracking(name, folder, callback.on_message) for name in track))
    recorder, summary, engine = RunRecorder(folder, task.experiment, followers), None, Engine()
    folder.lock()
    try:
        folder.make_folders()
        folder.remove_leftovers()
        save_initial_models(folder, task)
        engine = make_engine()
        if task.experiment.precision == "tf32" and (engine.device or device.type) != "cuda":
            callback.on_message("precision = tf32 is a GPU's: here it is that of float32")
        engine.on_event, engine.on_load = folder.log, partial(_show_load, folder, followers)
        more = {"workers_device": engine.device} if engine.name == "ray" else {}
        folder.log(event, engine=engine.name, device=str(device), **more)
        followers.on_task(task, folder, device)
        if train_only:
            method.train(task, engine, recorder, device)
            return
        outcome = method.cpfl(task, engine, recorder, device)
        summary = recorder.save(outcome, engine=engine.name, device=engine.device or device.type)
        folder.log("finished")
    finally:
        engine.close()
        followers.on_end(summary)
        folder.unlock()


def _show_load(folder: RunFolder, callback: Callback, load: dict[str, Any]) -> None:
    """The load of a cluster's workers, in a small file and for callbacks."""
    with suppress(RunFolderError):  # no run ends because a display cannot be written
        files.write_atomic(folder.path / "workers.json", json.dumps(load).encode(), lasting=False)
    callback.on_workers(load)
