"""Runs of a sweep in several processes on this machine."""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.errors import RunFolderError
from cpfl.settings import Experiment
from cpfl.sweep.progress import ProgressReporter, RunProgress, SweepCallback

POLL_SECONDS = 0.25
WAIT_POLICY = "OMP_WAIT_POLICY"  # OpenMP reads it when a process starts

Work = Mapping[str, tuple[Experiment, Path]]
End = Callable[[str, Exception | None], None]


def run_or_resume(experiment: Experiment, path: Path, progress: Callable[[RunProgress], None], **common: Any) -> None:
    """Start the run at this path, or resume it."""
    callback = ProgressReporter(path.name, progress)
    if not (path / "run.json").is_file():
        api.run(experiment, out=path, callback=callback, **common)
        return
    if common.get("engine") == "auto":
        common["engine"] = ""  # the one it started with
    api.resume(path, callback=callback, **common)


def run_in_processes(work: Work, jobs: int, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs, `jobs` at the same time. If a process is killed, the runs that had started count as failed."""
    left = dict(work)
    while left:
        started = _run_in_pool(left, jobs, common, callback, end)
        for name in started & left.keys():
            reason = "a process of the sweep was killed during this run: the same command resumes it"
            end(name, RunFolderError(f"{work[name][1]}: {reason}"))
            del left[name]


def _run_in_pool(
    left: dict[str, tuple[Experiment, Path]], jobs: int, common: Mapping[str, Any], callback: SweepCallback, end: End
) -> set[str]:
    """Run what is left and remove it; if the pool breaks, the names of the runs that had started."""
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    progress_queue: Any = context.Queue()
    started: set[str] = set()
    with (
        _passive_waiting(),
        concurrent.futures.ProcessPoolExecutor(jobs, context, _start_process, (progress_queue,)) as pool,
    ):
        futures = {pool.submit(_run, *left[name], dict(common)): name for name in left}
        try:
            while futures:
                ended, _ = concurrent.futures.wait(futures, POLL_SECONDS, "FIRST_COMPLETED")
                for progress in _drain(progress_queue):
                    started.add(progress.name)
                    callback.on_progress(progress)
                for future in ended:
                    name, error = futures.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        return started or set(left)
                    del left[name]
                    end(name, error if isinstance(error, Exception) else None)
                callback.on_wait()
        except BaseException:  # neither start nor finish other runs: they can be resumed
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return set()


@contextmanager
def _passive_waiting() -> Iterator[None]:
    """Let threads in new processes sleep while they wait: spinning ones would slow the other processes."""
    known = os.environ.get(WAIT_POLICY)
    os.environ.setdefault(WAIT_POLICY, "PASSIVE")
    try:
        yield
    finally:
        if known is None:
            del os.environ[WAIT_POLICY]


def _drain(progress_queue: Any) -> Iterator[RunProgress]:
    while True:
        try:
            yield progress_queue.get_nowait()
        except queue.Empty:
            return


# In the processes.

_report: Callable[[RunProgress], None]


def _start_process(progress_queue: Any) -> None:
    global _report
    _report = progress_queue.put
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Processes of a killed sweep must not keep its runs locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)  # as if killed: the run folder is enough to resume


def _run(experiment: Experiment, path: Path, common: dict[str, Any]) -> None:
    _report(RunProgress(path.name, 0, 0, experiment.cohorts, 0))
    run_or_resume(experiment, path, _report, **common)
