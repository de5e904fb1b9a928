"""How a sweep reports what happens: the callback, and the progress of a single run."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cpfl.api import Run
from cpfl.callbacks import Callback
from cpfl.federation.session import ClosedRound, Session
from cpfl.sweep.grid import SweepGrid

INTERVAL_SECONDS = 0.5


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

    def __init__(self, name: str, report: Callable[[RunProgress], None]) -> None:
        self._name, self._report = name, report
        self._rounds = self._stopped = self._cohorts = self._epoch = 0
        self._reported = 0.0

    def on_start(self, sessions: Sequence[Session]) -> None:
        self._cohorts = len(sessions)
        self._rounds = sum(session.round for session in sessions)
        self._stopped = sum(bool(session.stopped) for session in sessions)
        self._update()

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self._rounds += 1
        self._stopped += bool(session.stopped)
        self._update()

    def on_epoch(self, record: object) -> None:
        self._epoch += 1
        self._update()

    def _update(self) -> None:
        now = time.monotonic()
        if now - self._reported >= INTERVAL_SECONDS:
            self._reported = now
            self._report(RunProgress(self._name, self._rounds, self._stopped, self._cohorts, self._epoch))
