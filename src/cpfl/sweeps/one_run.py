"""One run of a sweep: started or resumed, its progress reported."""

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.callbacks import Callback, CallbackList
from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment
from cpfl.sweeps.callback import RunProgress

INTERVAL_SECONDS = 0.5  # at least, between two reports of a run

Work = Mapping[Path, Experiment]
"""The folders of runs that are to be made, and their experiments."""
End = Callable[[Path, Exception | None], None]
"""Called with a run's folder when it has ended, and with its error if it failed."""
Report = Callable[[RunProgress], None]
Follow = Callable[[Path], Callback]
"""A callback for the run in a folder; it travels to other processes."""


class ProgressReporter(Callback):
    """A run's callback that reports its progress to the sweep."""

    def __init__(self, name: str, experiment: Experiment, report: Report) -> None:
        self._progress = RunProgress(name, 0, 0, experiment.cohorts, 0)
        self._meets, self._report, self._reported = experiment.meets, report, 0.0
        report(self._progress)

    def on_start(self, sessions: Sequence[Session]) -> None:
        stopped = sum(bool(session.stopped) for session in sessions)
        self._update(rounds=sum(session.round for session in sessions), stopped=stopped, cohorts=len(sessions))

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        progress = self._progress
        meetings = max(progress.meetings, session.phases) if self._meets else 0
        self._update(rounds=progress.rounds + 1, stopped=progress.stopped + bool(session.stopped), meetings=meetings)

    def on_epoch(self, record: object) -> None:
        self._update(epoch=self._progress.epoch + 1)

    def _update(self, **numbers: Any) -> None:
        self._progress = self._progress._replace(**numbers)
        now = time.monotonic()
        if now - self._reported >= INTERVAL_SECONDS:
            self._reported = now
            self._report(self._progress)


def run_or_resume(
    experiment: Experiment, path: Path, report: Report, follow: Follow = lambda path: Callback(), **common: Any
) -> None:
    """Start the run at this path, or resume it."""
    callback = CallbackList(ProgressReporter(path.name, experiment, report), follow(path))
    if not (path / "run.json").is_file():
        api.run(experiment, out=path, callback=callback, verbose=False, **common)
        return
    if common.get("engine") == "auto":
        common["engine"] = ""  # the one it started with
    api.resume(path, callback=callback, verbose=False, **common)


def sendable(error: Exception) -> Exception:
    """The error as another process can read it: a user's exception need not travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
