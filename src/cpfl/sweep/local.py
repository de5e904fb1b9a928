"""The runs of a sweep on this machine, in this process or in several."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cpfl.engines.base import Engine
from cpfl.engines.create import create_engine, lane_engine, resolve_engine, torch_device, worker_engine
from cpfl.engines.lanes.shared import SharedLanes, common_settings
from cpfl.engines.shared import RunEngine, SharedEngine
from cpfl.engines.workers.pool import can_fork, cores
from cpfl.engines.workers.shared import SharedWorkers
from cpfl.errors import CpflError, RunFolderError
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment
from cpfl.sweep.callback import RunProgress, SweepCallback
from cpfl.sweep.one_run import End, Work, run_or_resume
from cpfl.sweep.side_by_side import SideBySide, Take
from cpfl.task.loading import given_arrays, load_task
from cpfl.task.task import Task

KILLED = "a process of the sweep was killed during this run: the same command resumes it"
WAIT_POLICY = "OMP_WAIT_POLICY"  # OpenMP reads it when a process starts
POLL_SECONDS = 0.25  # at most, between two calls of on_wait

Group = Sequence[tuple[Path, Experiment]]


def run_here(work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs in this process."""
    for group in groups(work, common):
        make_runs(group, partial(next, iter(group), None), common, callback, end)


def groups(work: Work, common: Mapping[str, Any]) -> list[list[tuple[Path, Experiment]]]:
    """Runs that can share an engine, in their order: any with workers, and in lanes those with the same common
    settings."""
    if uses_workers(common):
        return [list(work.items())]
    found: dict[str, list[tuple[Path, Experiment]]] = {}
    for path, experiment in work.items():
        found.setdefault(common_settings(experiment), []).append((path, experiment))
    return list(found.values())


def make_runs(group: Group, take: Take, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """Runs of a group, as `take` gives them: side by side if they can share an engine."""
    shared = shared_engine(group, common, callback.on_message) if len(group) > 1 else None
    if shared is not None:

        def run(experiment: Experiment, path: Path, engine: RunEngine) -> None:
            own = {**common, "engine": engine, "workers": 0}
            run_or_resume(experiment, path, callback.on_progress, **own)

        def alone(task: Task) -> Engine:
            return create_engine(shared.name, task, shared.device, callback.on_message)

        SideBySide(shared, take, run, alone, end).work()
        return
    while (taken := take()) is not None:
        path, experiment = taken
        error = None
        try:
            run_or_resume(experiment, path, callback.on_progress, **common)
        except Exception as caught:  # whatever it is, the other runs continue
            error = caught
        end(path, error)


def uses_workers(common: Mapping[str, Any]) -> bool:
    """Whether these arguments of `cpfl.run` mean the engine workers."""
    name = common.get("engine", "auto")
    return name in ("auto", "workers") and torch_device(common["cluster"].device, name).type == "cpu"


def shared_engine(group: Group, common: Mapping[str, Any], notify: Callable[[str], None]) -> SharedEngine | None:
    """The engine that these runs can share; None: there is none."""
    experiments = [experiment for _, experiment in group]
    if any(experiment.model.by_cohort for experiment in experiments):
        return None
    begun = {RunFolder.open(path).engine() for path, _ in group if (path / "run.json").is_file()}
    if uses_workers(common):
        workers = common.get("workers") or cores()
        if workers == 1 or not can_fork() or begun - {"workers"}:
            return None
        return SharedWorkers(workers, lambda task, pool: worker_engine(task, pool=pool))
    name = common.get("engine", "auto")
    device = torch_device(common["cluster"].device, name)
    if begun - {"lanes"} or name not in ("auto", "lanes") or (name == "auto" and device.type != "cuda"):
        return None
    try:
        given = given_arrays(common.get("train"), common.get("test"), common.get("public"), experiments[0])
        task = load_task(experiments[0], common.get("data"), common.get("model"), given, lambda text: None)
    except CpflError:  # each run says what is wrong with it
        return None
    if resolve_engine(name, task, device, notify) != "lanes":
        return None
    return SharedLanes(experiments, device, partial(lane_engine, device=device, notify=notify))


def run_in_processes(work: Work, jobs: int, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
    """All runs in so many processes. The runs of a process that is killed count as failed."""
    parts = groups(work, common)
    waiting = [deque(group) for group in parts]
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    with contextlib.ExitStack() as stack:
        if WAIT_POLICY not in os.environ:  # threads that spin while they wait would slow the other processes
            os.environ[WAIT_POLICY] = "PASSIVE"
            stack.callback(os.environ.pop, WAIT_POLICY)
        processes: dict[Connection, tuple[Any, set[Path]]] = {}  # with the runs that each has begun
        try:
            while any(waiting) or processes:
                while any(waiting) and len(processes) < jobs:
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_serve, args=(theirs, parts, dict(common)))
                    process.start()
                    theirs.close()
                    processes[ours] = process, set()
                for pipe in multiprocessing.connection.wait(list(processes), POLL_SECONDS):
                    assert isinstance(pipe, Connection)
                    process, runs = processes[pipe]
                    try:
                        kind, *facts = pipe.recv()
                    except (EOFError, ConnectionResetError):
                        process.join()
                        del processes[pipe]
                        for path in sorted(runs):
                            end(path, RunFolderError(f"{path}: {KILLED}"))
                        continue
                    if kind == "take":
                        queue = waiting[facts[0]]
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
            for process, _ in processes.values():
                process.terminate()
            raise


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
        try:
            message = pickle.dumps(("end", path, error))
            pickle.loads(message)
        except Exception:  # a user's exception need not travel
            message = pickle.dumps(("end", path, RuntimeError(f"{type(error).__name__}: {error}")))
        self._pipe.send_bytes(message)


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
