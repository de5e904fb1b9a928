"""A single run of a sweep, and how a sweep reports what happens."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cpfl import api
from cpfl.api import Run
from cpfl.callbacks import Callback
from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment
from cpfl.sweep.grid import SweepGrid

INTERVAL_SECONDS = 0.5  # at least, between two reports of a run
POLL_SECONDS = 0.25  # at most, between two looks at the reports of all runs

Work = Mapping[Path, Experiment]  # the folders of runs that are to be made, and their experiments
End = Callable[[Path, Exception | None], None]


class RunProgress(NamedTuple):
    """The progress of one run of a sweep."""

    name: str
    rounds: int
    stopped: int
    cohorts: int
    epoch: int  # of the distillation; 0: not started


class SweepCallback:
    """What a sweep calls as it proceeds. Override the methods you need."""

    def on_start(self, grid: SweepGrid, finished: Sequence[str]) -> None:
        """The sweep starts or resumes; these of its runs are finished already."""

    def on_progress(self, progress: RunProgress) -> None:
        """A run has progressed; called at most a few times a second."""

    def on_wait(self) -> None:
        """Called regularly while runs are under way."""

    def on_run(self, run: Run) -> None:
        """A run is finished, now or before."""

    def on_failure(self, path: Path, error: Exception) -> None:
        """A run failed; the others continue."""

    def on_message(self, text: str) -> None:
        """A line for the user."""


class ProgressReporter(Callback):
    """A run's callback that reports its progress to the sweep."""

    def __init__(self, name: str, cohorts: int, report: Callable[[RunProgress], None]) -> None:
        self._progress, self._report, self._reported = RunProgress(name, 0, 0, cohorts, 0), report, 0.0
        report(self._progress)

    def on_start(self, sessions: Sequence[Session]) -> None:
        stopped = sum(bool(session.stopped) for session in sessions)
        self._update(rounds=sum(session.round for session in sessions), stopped=stopped, cohorts=len(sessions))

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self._update(rounds=self._progress.rounds + 1, stopped=self._progress.stopped + bool(session.stopped))

    def on_epoch(self, record: object) -> None:
        self._update(epoch=self._progress.epoch + 1)

    def _update(self, **numbers: Any) -> None:
        self._progress = self._progress._replace(**numbers)
        now = time.monotonic()
        if now - self._reported >= INTERVAL_SECONDS:
            self._reported = now
            self._report(self._progress)


def run_or_resume(experiment: Experiment, path: Path, report: Callable[[RunProgress], None], **common: Any) -> None:
    """Start the run at this path, or resume it."""
    callback = ProgressReporter(path.name, experiment.cohorts, report)
    if not (path / "run.json").is_file():
        api.run(experiment, out=path, callback=callback, **common)
        return
    if common.get("engine") == "auto":
        common["engine"] = ""  # the one it started with
    api.resume(path, callback=callback, **common)
