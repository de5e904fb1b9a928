"""Runs in other people's experiment trackers: TensorBoard, MLflow, Weights & Biases.

A store takes points and an end; `Tracking` is the watcher that feeds one. Each start first tells the store what the run
folder already holds, so that a run that was killed and resumed is tracked once and without a gap, and a run that began
without a tracker can get one later.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cpfl.distillation.student import EpochRecord
from cpfl.errors import SettingError
from cpfl.federation.session import Closed, Session
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

FLUSH_SECONDS = 2.0
MANY = 16  # with more cohorts than this only every so manieth round is a point: stores take 0.1 ms for each
EVERY = 10


class Point(NamedTuple):
    """A value of a series, such as `cohort-0003/loss`, at a round or an epoch."""

    series: str
    step: int
    value: float


class Store(Protocol):
    """What a tracker must do; it writes into a folder of its own."""

    def write(self, points: Sequence[Point]) -> None:
        """Take some more points."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close; with the outcome, unless the run was interrupted."""


class Tracking:
    """A watcher that brings a run into a store. Trouble with the store ends the tracking, never the run."""

    def __init__(self, name: str, folder: RunFolder, note: Callable[[str], None]) -> None:
        self._name, self._folder, self._note = name, folder, note
        self._store: Store | None = None
        self._points: list[Point] = []
        self._every = 1
        self._flushed = 0.0

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Open the store, and tell it what was done before."""
        self._every = 1 if len(sessions) <= MANY else EVERY
        with self._guarded():
            self._store = STORES[self._name](self._folder)
        for session in sessions:
            for record in records.read(self._folder.rounds(session.cohort)):
                self._add(record)

    def on_round(self, session: Session, closed: Closed) -> None:
        """A point for each of its losses."""
        self._add(vars(closed.record))

    def on_epoch(self, record: EpochRecord) -> None:
        """A point for the student's loss and accuracy."""
        self._points.append(Point("distillation/loss", record.epoch, record.loss))
        self._points.append(Point("distillation/accuracy", record.epoch, record.accuracy))
        self._now_and_then()

    def on_note(self, text: str) -> None:
        """Nothing to track."""

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """The run is over, finished if there is a summary."""
        self._flush()
        with self._guarded():
            if self._store is not None:
                self._store.end(summary)
        self._store = None

    def _add(self, record: Mapping[str, Any]) -> None:
        if record["round"] % self._every and not record["stop"]:
            return
        for key in ("loss", "validation", "average"):
            if record[key] is not None:
                self._points.append(Point(f"cohort-{record['cohort']:04d}/{key}", record["round"], record[key]))
        hours = record["clock"] / 3600
        self._points.append(Point(f"cohort-{record['cohort']:04d}/hours", record["round"], hours))
        self._now_and_then()

    def _now_and_then(self) -> None:
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        points, self._points = self._points, []
        with self._guarded():
            if self._store is not None and points:
                self._store.write(points)
        self._flushed = time.monotonic()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a foreign library throws
            self._store = None
            self._note(f"{self._name} does not track this run any more: {type(error).__name__}: {error}")


class TensorBoard:
    """Event files in tracking/tensorboard; `tensorboard --logdir RUNS` finds them."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(_emptied(folder.path / "tracking" / "tensorboard")))
        settings = (folder.path / "experiment.toml").read_text()
        self._writer.add_text("experiment", f"```toml\n{settings}```")

    def write(self, points: Sequence[Point]) -> None:
        """As scalars."""
        for point in points:
            self._writer.add_scalar(point.series, point.value, point.step, new_style=True)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The outcome as scalars of one step."""
        for key, value in _numbers(summary or {}).items():
            self._writer.add_scalar(f"summary/{key}", value, 0, new_style=True)
        self._writer.close()


class Mlflow:
    """A run in $MLFLOW_TRACKING_URI, or in files in tracking/mlflow."""

    LARGEST = 1000  # metrics of one call, by MLflow's own limit

    def __init__(self, folder: RunFolder) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask to be told
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        place = folder.path / "tracking" / "mlflow"
        place.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (place / "store").absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        id_file = place / "run_id"
        if id_file.is_file():  # an earlier stretch of this run, which is told again as a whole
            with contextlib.suppress(Exception):  # it may be gone, or in another place
                self._client.delete_run(id_file.read_text())
        experiment = folder.experiment()
        found = self._client.get_experiment_by_name(experiment.name)
        group = found.experiment_id if found else self._client.create_experiment(experiment.name)
        self._run = self._client.create_run(group, run_name=folder.path.name).info.run_id
        id_file.write_text(self._run)
        for key, value in _flat(experiment.model_dump(mode="json")).items():
            self._client.log_param(self._run, key, value if isinstance(value, str) else json.dumps(value))

    def write(self, points: Sequence[Point]) -> None:
        """As metrics, many in one call."""
        now = int(time.time() * 1000)
        metrics = [self._metric(point.series, point.value, now, point.step) for point in points]
        for at in range(0, len(metrics), self.LARGEST):
            self._client.log_batch(self._run, metrics[at : at + self.LARGEST])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The outcome as metrics of step 0."""
        self.write([Point(f"summary/{key}", 0, value) for key, value in _numbers(summary or {}).items()])
        self._client.set_terminated(self._run, "FINISHED" if summary else "KILLED")


class WeightsAndBiases:
    """A run in tracking/wandb, offline unless $WANDB_MODE says otherwise; `wandb sync` sends it."""

    def __init__(self, folder: RunFolder) -> None:
        import wandb

        experiment = folder.experiment()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", f"cpfl-{experiment.name}"),
            name=folder.path.name,
            dir=str(_emptied(folder.path / "tracking" / "wandb").parent),  # it adds "wandb" itself
            mode=os.environ.get("WANDB_MODE", "offline"),  # nothing leaves the machine unasked
            config=experiment.model_dump(mode="json"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for cohort in range(experiment.cohorts):
            self._run.define_metric(f"cohort-{cohort:04d}/*", step_metric=f"cohort-{cohort:04d}/round")
        self._run.define_metric("distillation/*", step_metric="distillation/epoch")

    def write(self, points: Sequence[Point]) -> None:
        """Points of one step in one call."""
        rows: dict[tuple[str, int], dict[str, float]] = {}
        for point in points:
            group = point.series.partition("/")[0]
            axis = "epoch" if group == "distillation" else "round"
            rows.setdefault((group, point.step), {f"{group}/{axis}": point.step})[point.series] = point.value
        for row in rows.values():
            self._run.log(row)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """The outcome as its summary."""
        self._run.summary.update(_numbers(summary or {}))
        self._run.finish(exit_code=0 if summary else 1)


STORES: dict[str, Callable[[RunFolder], Store]] = {
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "wandb": WeightsAndBiases,
}


def check(names: Sequence[str]) -> None:
    """Whether these trackers are known and installed."""
    for name in names:
        if name not in STORES:
            raise SettingError(f"--track {name} is unknown; known: {', '.join(STORES)}")
        if importlib.util.find_spec(name) is None:
            raise SettingError(f"--track {name} needs a package that is not installed: pip install 'cpfl[{name}]'")


def _emptied(path: Path) -> Path:
    """Our own folder for a store, without what an earlier stretch of the run left."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in summary.items() if isinstance(value, int | float)}


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings by dotted key, as `--set` takes them."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat
