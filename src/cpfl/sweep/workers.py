"""One run of a sweep, in this process or in one of several that work side by side."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cpfl import api
from cpfl.errors import RunFolderError
from cpfl.experiment import Experiment
from cpfl.federation.session import Closed, Session

POLL_SECONDS = 0.25
PULSE_SECONDS = 0.5
WAITING = "OMP_WAIT_POLICY"  # read by OpenMP as a process begins


class Pulse(NamedTuple):
    """How far a run has come."""

    name: str
    rounds: int
    stopped: int
    cohorts: int
    epoch: int  # of the distillation; 0: it has not begun


class _Feeling(api.Silent):
    """A watcher that passes a run's pulse on."""

    def __init__(self, name: str, tell: Callable[[Pulse], None]) -> None:
        self._name, self._tell = name, tell
        self._rounds = self._stopped = self._cohorts = self._epoch = 0
        self._told = 0.0

    def on_start(self, sessions: Sequence[Session]) -> None:  # type: ignore[override]
        self._cohorts = len(sessions)
        self._rounds = sum(session.round for session in sessions)
        self._stopped = sum(bool(session.stopped) for session in sessions)
        self._now_and_then()

    def on_round(self, session: Session, closed: Closed) -> None:  # type: ignore[override]
        self._rounds += 1
        self._stopped += bool(session.stopped)
        self._now_and_then()

    def on_epoch(self, record: object) -> None:
        self._epoch += 1
        self._now_and_then()

    def _now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._told >= PULSE_SECONDS:
            self._told = now
            self._tell(Pulse(self._name, self._rounds, self._stopped, self._cohorts, self._epoch))


def run_or_resume(experiment: Experiment, path: Path, pulse: Callable[[Pulse], None], **common: Any) -> None:
    """Make whatever is still missing of the run at this path."""
    watcher = _Feeling(path.name, pulse)
    if not (path / "run.json").is_file():
        api.run(experiment, out=path, watcher=watcher, **common)
        return
    if common.get("engine") == "auto":
        common["engine"] = ""  # the one it began with
    api.resume(path, watcher=watcher, **common)


Work = Mapping[str, tuple[Experiment, Path]]
End = Callable[[str, Exception | None], None]


def in_processes(
    work: Work, jobs: int, common: Mapping[str, Any], pulse: Callable[[Pulse], None], wait: Callable[[], None], end: End
) -> None:
    """All runs, so many at a time; should a process be killed, the runs it may have had in hand are given up."""
    left = dict(work)
    while left:
        started = _in_pool(left, jobs, common, pulse, wait, end)
        for name in started & left.keys():
            reason = "a process of the sweep was killed while this run went on: the same command goes on with it"
            end(name, RunFolderError(f"{work[name][1]}: {reason}"))
            del left[name]


def _in_pool(
    left: dict[str, tuple[Experiment, Path]],
    jobs: int,
    common: Mapping[str, Any],
    pulse: Callable[[Pulse], None],
    wait: Callable[[], None],
    end: End,
) -> set[str]:
    """Do what is left and take it out; if the pool breaks, the names of what had been begun."""
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    pulses: Any = context.Queue()
    begun: set[str] = set()
    with _patient(), concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (pulses,)) as pool:
        open_runs = {pool.submit(_work, *left[name], dict(common)): name for name in left}
        try:
            while open_runs:
                ended, _ = concurrent.futures.wait(open_runs, POLL_SECONDS, "FIRST_COMPLETED")
                for beat in _waiting(pulses):
                    begun.add(beat.name)
                    pulse(beat)
                for future in ended:
                    name, error = open_runs.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        return begun or set(left)
                    del left[name]
                    end(name, error if isinstance(error, Exception) else None)
                wait()
        except BaseException:  # do not begin what waits, nor finish what runs: it can be resumed
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return set()


@contextmanager
def _patient() -> Iterator[None]:
    """In processes that begin meanwhile, threads that wait for each other sleep: spinning, those of several processes
    on the same cores would keep each other from working."""
    known = os.environ.get(WAITING)
    os.environ.setdefault(WAITING, "PASSIVE")
    try:
        yield
    finally:
        if known is None:
            del os.environ[WAITING]


def _waiting(pulses: Any) -> list[Pulse]:
    found = []
    while True:
        try:
            found.append(pulses.get_nowait())
        except queue.Empty:
            return found


# In the processes.

_tell: Callable[[Pulse], None]


def _begin(pulses: Any) -> None:
    global _tell
    _tell = pulses.put
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A sweep that was killed must not leave processes behind that hold its runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)  # as if killed: what is on disk is enough to go on


def _work(experiment: Experiment, path: Path, common: dict[str, Any]) -> None:
    _tell(Pulse(path.name, 0, 0, experiment.cohorts, 0))
    run_or_resume(experiment, path, _tell, **common)
