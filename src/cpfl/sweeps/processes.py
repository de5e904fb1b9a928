"""The runs of a sweep in several processes of this machine."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cpfl.errors import RunFolderError
from cpfl.settings import Experiment
from cpfl.sweeps.callback import RunProgress, SweepCallback
from cpfl.sweeps.local import Group, groups, make_runs, tell_groups, uses_lanes
from cpfl.sweeps.one_run import End, Work, sendable

KILLED = "a process of the sweep was killed during this run: the same command resumes it"
WAIT_POLICY = "OMP_WAIT_POLICY"  # OpenMP reads it when a process starts
POLL_SECONDS = 0.25  # at most, between two calls of on_wait


def run_in_processes(work: Work, jobs: int, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs in so many processes. The runs of a process that is killed count as failed."""
    parts = groups(work, common)
    tell_groups(parts, common, callback)
    queues = [shares(part, jobs, common) for part in parts]  # by group and process
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    with contextlib.ExitStack() as stack:
        if WAIT_POLICY not in os.environ:  # threads that spin while they wait would slow the other processes
            os.environ[WAIT_POLICY] = "PASSIVE"
            stack.callback(os.environ.pop, WAIT_POLICY)
        processes: dict[Connection, tuple[Any, int, set[Path]]] = {}  # with their numbers, and the runs each has begun
        try:
            while True:
                for number in set(range(jobs)) - {number for _, number, _ in processes.values()}:
                    if any(queue[number] for queue in queues):
                        ours, theirs = context.Pipe()
                        process = context.Process(target=_serve, args=(theirs, parts, dict(common)))
                        process.start()
                        theirs.close()
                        processes[ours] = process, number, set()
                if not processes:
                    break
                for pipe in multiprocessing.connection.wait(list(processes), POLL_SECONDS):
                    assert isinstance(pipe, Connection)
                    process, number, runs = processes[pipe]
                    try:
                        kind, *facts = pipe.recv()
                    except (EOFError, ConnectionResetError):
                        process.join()
                        del processes[pipe]
                        for path in sorted(runs):
                            end(path, RunFolderError(f"{path}: {KILLED}"))
                        continue
                    if kind == "take":
                        queue = queues[facts[0]][number]
                        taken = queue.popleft() if queue else None
                        runs |= {taken[0]} if taken else set()
                        with contextlib.suppress(OSError):  # it was killed: the next reading says so
                            pipe.send(taken)
                    elif kind == "end":
                        runs.discard(facts[0])
                        end(*facts)
                    else:
                        getattr(callback, kind)(*facts)
                callback.on_wait()
        except BaseException:  # neither start nor finish other runs: they can be resumed
            for process, _, _ in processes.values():
                process.terminate()
            raise


def shares(group: Group, jobs: int, common: Mapping[str, Any]) -> list[deque[tuple[Path, Experiment]]]:
    """The queue of each process.

    All take from one where a run is the same bits whoever makes it. In lanes a sum is rounded as its neighbours have
    it: there each process has its own runs, so that the same sweep gives the same bits.
    """
    if not uses_lanes(common):
        return [deque(group)] * jobs
    order = [*range(jobs), *reversed(range(jobs))]  # so that none has all the large ones
    return [deque(one for k, one in enumerate(group) if order[k % len(order)] == number) for number in range(jobs)]


# In the processes.


class _Sender(SweepCallback):
    """What happens in a process, told to the first one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def on_progress(self, progress: RunProgress) -> None:
        self._pipe.send(("on_progress", progress))

    def on_message(self, text: str) -> None:
        self._pipe.send(("on_message", text))

    def take(self, group: int) -> tuple[Path, Experiment] | None:
        """The next run of a group."""
        self._pipe.send(("take", group))
        taken: tuple[Path, Experiment] | None = self._pipe.recv()
        return taken

    def end(self, path: Path, error: Exception | None) -> None:
        """A run has ended."""
        self._pipe.send(("end", path, None if error is None else sendable(error)))


def _serve(pipe: Connection, parts: Sequence[Group], common: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sender = _Sender(pipe)
    for number, group in enumerate(parts):
        make_runs(group, partial(sender.take, number), common, sender, sender.end)


def _end_with_parent() -> None:
    """Processes of a killed sweep must not keep its runs locked."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # as if killed: the run folder is enough to resume
