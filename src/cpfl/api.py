"""The same from Python as from the command line: run, resume, distill, load_run."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cpfl import experiment_file, method, trackers
from cpfl.distillation.student import EpochRecord
from cpfl.engines import choice
from cpfl.engines.base import Engine
from cpfl.engines.ray.place import Place, settled
from cpfl.errors import RunFolderError, SettingError
from cpfl.estimate import estimate
from cpfl.experiment import GIVEN, Distillation, Experiment
from cpfl.federation.session import Closed, Session
from cpfl.models import State
from cpfl.opening import (
    absolute,
    check_engine,
    check_moment,
    describe,
    given_arrays,
    prepare_named,
    reopen,
    torch_device,
)
from cpfl.problem import OwnModel, Problem
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state

RUNS = Path("runs")


class Silent:
    """A watcher that says nothing."""

    def on_start(self, sessions: object) -> None: ...
    def on_round(self, session: object, closed: object) -> None: ...
    def on_epoch(self, record: object) -> None: ...
    def on_note(self, text: str) -> None: ...


class _Together:
    """Several watchers as one."""

    def __init__(self, *watchers: method.Watcher) -> None:
        self._watchers = watchers

    def on_start(self, sessions: Sequence[Session]) -> None:
        for watcher in self._watchers:
            watcher.on_start(sessions)

    def on_round(self, session: Session, closed: Closed) -> None:
        for watcher in self._watchers:
            watcher.on_round(session, closed)

    def on_epoch(self, record: EpochRecord) -> None:
        for watcher in self._watchers:
            watcher.on_epoch(record)

    def on_note(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.on_note(text)


@dataclass(frozen=True)
class Run:
    """A run folder, opened for reading."""

    path: Path

    @property
    def experiment(self) -> Experiment:
        """Every setting of the run."""
        return RunFolder.open(self.path).experiment()

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty while the run is unfinished."""
        return RunFolder.open(self.path).summary() or {}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All records, cohort by cohort."""
        folder = RunFolder.open(self.path)
        return [line for cohort in range(len(folder.about()["plan"])) for line in records.read(folder.rounds(cohort))]

    @property
    def model(self) -> State:
        """The global model's state, for `load_state_dict`."""
        return load_state(RunFolder.open(self.path).model("global"))


def run(
    experiment: str | Path | Experiment,
    *,
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    out: str | Path | None = None,
    data: str | Path | None = None,
    engine: str = "auto",
    device: str = "auto",
    workers: int = 0,
    cluster: Place | None = None,
    watcher: method.Watcher | None = None,
    track: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Run one experiment: a preset, a TOML file or an Experiment, with your own model and arrays if you like.

    `train` and `test` are (inputs, labels) or (inputs, labels, {column: values}); `public` is inputs alone.
    `workers` processes train on a CPU, else one for each core; outcomes do not depend on their number.
    `cluster` says where the engine ray works: Place("host:6379"); without one, on this machine.
    `track` names trackers that follow the run: tensorboard, mlflow, wandb.
    """
    trackers.check(track)
    chosen = experiment if isinstance(experiment, Experiment) else experiment_file.load(experiment)
    replaced = dict(settings or {}) | {
        key: GIVEN
        for key, value in (("model.name", model), ("data.train", train), ("data.public", public))
        if value is not None
    }
    chosen = experiment_file.with_settings(chosen, replaced)
    cluster = settled(cluster, device)
    check_engine(engine, workers, cluster)
    place = torch_device(cluster.device, engine)
    path = Path(out) if out is not None else RUNS / new_name(chosen)
    RunFolder.check_free(path)
    chosen = absolute(chosen)
    check_moment(chosen)
    looking = watcher or Silent()
    problem = prepare_named(chosen, data, model, given_arrays(train, test, public), looking.on_note)
    looking.on_note(estimate(problem, place).sentence(chosen))

    def making() -> Engine:
        return choice.engine(engine, problem, place, looking.on_note, workers, cluster)

    made = making() if engine == "ray" else None  # what is wrong with a cluster is told before anything is written
    try:
        folder = RunFolder.create(path, chosen, describe(problem, data))
    except BaseException:
        _close(made)
        raise
    return _go(problem, folder, making if made is None else lambda: made, place, looking, track, "started")


def resume(
    path: str | Path,
    *,
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    engine: str = "",
    device: str = "auto",
    workers: int = 0,
    cluster: Place | None = None,
    watcher: method.Watcher | None = None,
    track: Sequence[str] = (),
) -> Run:
    """Go on with a run that was killed; it ends as it would have. Own model and arrays must be given again."""
    trackers.check(track)
    folder = RunFolder.open(Path(path))
    if folder.summary() is not None:
        return Run(folder.path)
    engine = engine or folder.engine() or "auto"  # the one it began with: another one differs by rounding
    cluster = settled(cluster, device)
    check_engine(engine, workers, cluster)
    place = torch_device(cluster.device, engine)
    looking = watcher or Silent()
    problem = reopen(folder, data, model, given_arrays(train, test, public), looking.on_note)

    def making() -> Engine:
        return choice.engine(engine, problem, place, looking.on_note, workers, cluster)

    return _go(problem, folder, making, place, looking, track, "resumed")


def distill(
    path: str | Path,
    *,
    name: str = "",
    model: OwnModel | None = None,
    train: object = None,
    test: object = None,
    public: object = None,
    data: str | Path | None = None,
    device: str = "auto",
    watcher: method.Watcher | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Distil a run again, finished or still running, without training: at="10h", quorum=0.75, weights="uniform" …"""
    folder = RunFolder.open(Path(path))
    changed = changed_distillation(folder.experiment(), settings)
    if name and (name.startswith(".") or not all(c.isalnum() or c in "-._" for c in name)):
        raise SettingError(f"--name {name!r} is not allowed: letters, digits, '-', '_' and '.', not beginning with '.'")
    label = name or "-".join(f"{key}-{value}" for key, value in settings.items()) or "again"
    label = "".join(c if c.isalnum() or c in "-._" else "_" for c in label)
    looking, own_public = watcher or Silent(), public is not None
    problem = reopen(
        folder, data, model, given_arrays(train, test, public), looking.on_note, changed.student, own_public
    )
    into = folder.path / "distillations" / label
    began = time.perf_counter()
    place = torch_device(device)
    outcome = method.distil_cohorts(problem, folder, changed, into, place, looking)
    summary = {
        **outcome,
        "distillation": changed.model_dump(),
        "wall_seconds": round(time.perf_counter() - began, 3),
        "device": place.type,
    }
    files.write_json(into / "summary.json", summary)
    return {**summary, "path": str(into)}


def changed_distillation(experiment: Experiment, changes: Mapping[str, Any]) -> Distillation:
    """How a run is distilled again: a given time takes the place of its own quorum, a given quorum that of its time."""
    own = dict(changes)
    if own.get("at"):
        own.setdefault("quorum", 1.0)
    elif "quorum" in own:
        own.setdefault("at", "")
    return experiment_file.with_settings(experiment, {f"distillation.{k}": v for k, v in own.items()}).distillation


def load_run(path: str | Path) -> Run:
    """Open a run folder for reading."""
    return Run(RunFolder.open(Path(path)).path)


def new_name(experiment: Experiment) -> str:
    """A folder name that sorts by time and is not taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment.name}-n{experiment.cohorts}-seed{experiment.seed}"
    taken = sum(1 for _ in RUNS.glob(f"{name}*"))
    return f"{name}-{taken + 1}" if taken else name


def _go(
    problem: Problem,
    folder: RunFolder,
    making: Callable[[], Engine],
    device: torch.device,
    watcher: method.Watcher,
    track: Sequence[str],
    event: str,
) -> Run:
    tracking = [trackers.Tracking(name, folder, watcher.on_note) for name in track]
    summary, worker = None, None
    folder.lock()
    try:
        if not folder.model("start").is_file():
            files.save_tensors(folder.model("start"), problem.start, {"round": 0, "clock": 0.0})
        for cohort, own in problem.others.items():
            if not folder.own_start(cohort).is_file():
                files.save_tensors(folder.own_start(cohort), own.start, {"round": 0, "clock": 0.0})
        worker = making()
        more: dict[str, Any] = {}
        if worker.name == "ray":
            _look_at(worker, folder, watcher)
            more["workers_device"] = getattr(worker, "device", "")
        folder.log(event, engine=worker.name, device=str(device), **more)
        summary = method.cpfl(problem, folder, worker, device, _Together(watcher, *tracking))
        folder.log("finished")
    finally:
        _close(worker)
        for tracker in tracking:
            tracker.on_end(summary)
        folder.unlock()
    return Run(folder.path)


def _look_at(engine: Any, folder: RunFolder, watcher: method.Watcher) -> None:
    """What happens on a cluster is worth a line in the run's log, and who does what a small file."""
    shown = getattr(watcher, "on_workers", lambda load: None)

    def on_load(load: dict[str, Any]) -> None:
        with contextlib.suppress(RunFolderError):  # nobody's run ends for want of a display
            files.write_atomic(folder.workers(), json.dumps(load).encode(), lasting=False)
        shown(load)

    engine.on_event, engine.on_load = folder.log, on_load


def _close(engine: Any) -> None:
    """Let go of what an engine holds, if it holds anything."""
    if engine is not None and hasattr(engine, "close"):
        engine.close()
