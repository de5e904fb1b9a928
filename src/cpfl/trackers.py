"""Runs in other experiment trackers: TensorBoard, MLflow, Weights & Biases.

A store takes points and an end; `Tracking` is the callback that feeds one. Each start first gives the store what the
run folder already holds. So a resumed run is tracked once and without a gap, and a run may get a tracker later.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cpfl.callbacks import Callback
from cpfl.distillation.student import EpochRecord
from cpfl.errors import SettingError
from cpfl.federation.session import ClosedRound, Session
from cpfl.registry import Registry
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import effects

FLUSH_SECONDS = 2.0
MANY = 16  # with more cohorts than this only every tenth round is a point: stores take 0.1 ms for each
EVERY = 10


class Point(NamedTuple):
    """A value of a series, such as `cohort-0003/loss`, at a round or an epoch."""

    series: str
    step: int
    value: float


class Store:
    """Base class of trackers, built in or as `module:Class`; each writes into a folder of its own."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def write(self, points: Sequence[Point]) -> None:
        """Add some points."""

    def end(self, summary: Mapping[str, float] | None) -> None:
        """Close; with the numbers of the outcome, unless the run was interrupted."""

    def _emptied(self, name: str) -> Path:
        """The store's folder, without what an earlier process of the run wrote."""
        path = self._folder.path / "tracking" / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def series_name(metric: str) -> str:
    """A metric's name in characters that every store takes: R² is R2."""
    plain = unicodedata.normalize("NFKD", metric).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.-]+", "_", plain) or "score"


class Tracking(Callback):
    """Writes a run into a store. An error of the store ends the tracking, never the run."""

    def __init__(self, name: str, folder: RunFolder, notify: Callable[[str], None]) -> None:
        self._name, self._folder, self._notify = name, folder, notify
        self._store = Store(folder)  # one that ignores everything, until the run starts and after an error
        self._points: list[Point] = []
        self._every = 1
        self._flushed = 0.0

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Open the store, and give it the rounds that were trained before."""
        self._every = 1 if len(sessions) <= MANY else EVERY
        with self._guarded():
            self._store = STORES.find(self._name)(self._folder)
        for session in sessions:
            for record in records.read(self._folder.rounds(session.cohort)):
                self._add_round(record)

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        """Add a point for each of its losses."""
        self._add_round(vars(closed.record))

    def on_epoch(self, record: EpochRecord) -> None:
        """Add a point for the student's loss and accuracy."""
        metric = series_name(str(self._folder.about().get("metric", "accuracy")))
        self._add("distillation", record.epoch, {"loss": record.loss, metric: record.accuracy})

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """Write what is left, and the outcome of a finished run."""
        self._flush()
        numbers = {key: value for key, value in (summary or {}).items() if isinstance(value, int | float)}
        with self._guarded():
            self._store.end(numbers if summary else None)

    def _add_round(self, record: Mapping[str, Any]) -> None:
        if record["round"] % self._every and not record["stop"]:
            return
        values = {key: record[key] for key in ("loss", "validation", "moving_average") if record[key] is not None}
        self._add(f"cohort-{record['cohort']:04d}", record["round"], values | {"hours": record["clock"] / 3600})

    def _add(self, group: str, step: int, values: Mapping[str, float]) -> None:
        self._points += [Point(f"{group}/{key}", step, value) for key, value in values.items()]
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        points, self._points = self._points, []
        if points:
            with self._guarded():
                self._store.write(points)
        self._flushed = time.monotonic()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever another library throws
            self._store = Store(self._folder)
            self._notify(f"{self._name} does not track this run any more: {type(error).__name__}: {error}")


class TensorBoard(Store):
    """Event files in tracking/tensorboard; `tensorboard --logdir RUNS` finds them."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(folder)
        self._writer = SummaryWriter(str(self._emptied("tensorboard")))
        self._writer.add_text("experiment", f"```toml\n{(folder.path / 'experiment.toml').read_text()}```")

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._writer.add_scalar(point.series, point.value, point.step, new_style=True)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.write([Point(f"summary/{key}", 0, value) for key, value in (summary or {}).items()])
        self._writer.close()


class Mlflow(Store):
    """A run in $MLFLOW_TRACKING_URI, or in files in tracking/mlflow."""

    LARGEST = 1000  # metrics of one call, MLflow's limit

    def __init__(self, folder: RunFolder) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions require it
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        super().__init__(folder)
        self._metric = Metric
        own = folder.path / "tracking" / "mlflow"
        own.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (own / "store").absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        id_file = own / "run_id"
        if id_file.is_file():  # an earlier process of this run, whose rounds are written again
            with contextlib.suppress(Exception):  # it may be gone, or on another server
                self._client.delete_run(id_file.read_text())
        experiment = folder.experiment()
        found = self._client.get_experiment_by_name(experiment.name)
        group = found.experiment_id if found else self._client.create_experiment(experiment.name)
        self._run = self._client.create_run(group, run_name=folder.path.name).info.run_id
        id_file.write_text(self._run)
        for key, value in effects.leaves(experiment.model_dump(mode="json")).items():
            if value != {}:
                self._client.log_param(self._run, key, value if isinstance(value, str) else json.dumps(value))

    def write(self, points: Sequence[Point]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(point.series, point.value, now, point.step) for point in points]
        for start in range(0, len(metrics), self.LARGEST):
            self._client.log_batch(self._run, metrics[start : start + self.LARGEST])

    def end(self, summary: Mapping[str, float] | None) -> None:
        self.write([Point(f"summary/{key}", 0, value) for key, value in (summary or {}).items()])
        self._client.set_terminated(self._run, "FINISHED" if summary else "KILLED")


class WeightsAndBiases(Store):
    """A run in tracking/wandb, offline unless $WANDB_MODE says otherwise; `wandb sync` sends it."""

    def __init__(self, folder: RunFolder) -> None:
        import wandb

        super().__init__(folder)
        experiment = folder.experiment()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", f"cpfl-{experiment.name}"),
            name=folder.path.name,
            dir=str(self._emptied("wandb").parent),  # it adds "wandb" itself
            mode=os.environ.get("WANDB_MODE", "offline"),  # nothing leaves the machine by default
            config=experiment.model_dump(mode="json"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        for cohort in range(experiment.cohorts):
            self._run.define_metric(f"cohort-{cohort:04d}/*", step_metric=f"cohort-{cohort:04d}/round")
        self._run.define_metric("distillation/*", step_metric="distillation/epoch")

    def write(self, points: Sequence[Point]) -> None:
        steps: dict[tuple[str, int], dict[str, float]] = {}
        for point in points:
            group = point.series.partition("/")[0]
            axis = "epoch" if group == "distillation" else "round"
            steps.setdefault((group, point.step), {f"{group}/{axis}": point.step})[point.series] = point.value
        for values in steps.values():
            self._run.log(values)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self._run.summary.update(summary or {})
        self._run.finish(exit_code=0 if summary else 1)


KINDS = {"tensorboard": "TensorBoard", "mlflow": "Mlflow", "wandb": "WeightsAndBiases"}
STORES = Registry[Store]("track", f"{__name__}:Store", {key: f"{__name__}:{name}" for key, name in KINDS.items()})


def check(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed."""
    for name in names:
        STORES.find(name)
        if name in KINDS and importlib.util.find_spec(name) is None:
            raise SettingError(f"track = {name!r} needs a package that is not installed: pip install 'cpfl[{name}]'")
