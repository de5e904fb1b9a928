"""Processes that train and evaluate side by side, each with a trainer of its own and models in shared memory.

They are forked, so that the data are in memory already and only once. Several runs may share them: a process that was
forked before a run began is replaced by another one when it is to work for that run. A worker has two slots for
results, so that it continues while the last result is read.
"""

import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from cpfl import models
from cpfl.engines.workers.trainer import Job, ModelRow, Trainer, model_rows
from cpfl.errors import CpflError, ModelError
from cpfl.models.layout import Layout
from cpfl.task.task import Task

SLOTS = 2  # results of one worker that may wait to be read

Prepare = Callable[[Job, ModelRow], None]
"""(job, the row of its result): called before a job starts."""
OnDone = Callable[[Job, Any, ModelRow], None]
"""(job, its answer, the row of its result): the row is free again after the call."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether workers can be forked here: not beside a GPU, whose threads would not survive."""
    return sys.platform == "linux" and not torch.cuda.is_available()


class PoolRun:
    """A run whose jobs a pool does, with the shared rows of its cohorts' models and of results."""

    prepare: Prepare
    on_done: OnDone
    error: Exception | None

    def __init__(self, number: int, task: Task, layout: Layout, slots: int) -> None:
        self.number, self.task, self.layout = number, task, layout
        self.models = model_rows(task, layout, task.experiment.cohorts)
        self.slots = model_rows(task, layout, slots)
        self.waiting: deque[Job] = deque()
        self.with_workers = 0  # jobs
        self.failed, self.error = False, None

    def begin(self, prepare: Prepare, on_done: OnDone) -> None:
        """Its jobs are prepared, and what they bring is taken, by these."""
        self.prepare, self.on_done, self.failed = prepare, on_done, False
        self.waiting.clear()

    def forget(self) -> None:
        """Release what refers to a run, and so to its lock: its error's traceback, too."""
        self.error = None
        del self.prepare, self.on_done

    @property
    def busy(self) -> bool:
        """Whether it has anything left to do."""
        return not self.failed and bool(self.waiting or self.with_workers)

    def fail(self, error: Exception) -> None:
        """Nothing of it is done any more."""
        if not self.failed:
            self.failed, self.error = True, error
        self.waiting.clear()

    def done(self, job: Job, answer: Any, slot: int) -> None:
        """A job has ended; its answer may be an error."""
        if self.failed:
            return
        try:
            if isinstance(answer, Exception):
                raise answer
            self.on_done(job, answer, self.slots[slot])
        except Exception as error:  # whatever it is, other runs continue
            self.fail(error)


class WorkerPool:
    """So many workers for the runs that are added; with one, this process does the work."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._runs: dict[int, PoolRun] = {}
        self._numbers = itertools.count()
        self._workers: list[_Worker | None] = [None] * count
        self._trainers: dict[int, Trainer] = {}  # by run, where no process is forked

    def add(self, task: Task, layout: Layout) -> PoolRun:
        """Take in a run."""
        run = PoolRun(next(self._numbers), task, layout, self._count * SLOTS)
        self._runs[run.number] = run
        return run

    def remove(self, run: PoolRun) -> None:
        """A run has left."""
        self._runs.pop(run.number, None)
        self._trainers.pop(run.number, None)

    def work(self, wait_for_answers: bool = True) -> None:
        """Do jobs until a run has no more, or only what can be done without waiting."""
        with models.threads(1):  # a second thread of the main process would wait for a core that a worker has
            busy = [run for run in self._runs.values() if run.busy]
            while busy and all(run.busy for run in busy):
                if self._count == 1:
                    self._do_next(busy)
                else:
                    self._hand_out(busy)
                    self._receive(None if wait_for_answers else 0)
                if not wait_for_answers:
                    return

    @contextlib.contextmanager
    def kept_in_memory(self) -> Iterator[None]:
        """Meanwhile no collection of garbage writes into the memory that the workers share; then they end."""
        frozen = gc.get_freeze_count()
        gc.collect(1)  # what is young and dead would be kept until somebody collects everything
        gc.freeze()
        try:
            yield
        finally:
            self.end()
            if not frozen:  # else objects of somebody else's would be collected again
                gc.unfreeze()

    def end(self) -> None:
        """End all workers; what they have not done yet is nobody's."""
        for number, worker in enumerate(self._workers):
            if worker is not None:
                worker.end()
                self._workers[number] = None
        for run in self._runs.values():
            run.with_workers = 0

    def _do_next(self, busy: Sequence[PoolRun]) -> None:
        """One job, in this process."""
        run = next(run for run in busy if run.waiting)
        job = run.waiting.popleft()
        with torch.random.fork_rng(devices=[]):
            if run.number not in self._trainers:
                self._trainers[run.number] = Trainer(run.task, run.layout)
            try:
                run.prepare(job, run.slots[0])
                answer: Any = do(self._trainers[run.number], run, job, 0)
            except Exception as error:
                answer = error
        run.done(job, answer, 0)

    def _hand_out(self, busy: Sequence[PoolRun]) -> None:
        """Jobs to workers that have room: those of early runs first, so that these end soon."""
        for _ in range(SLOTS):  # one each, then a second each
            for number in sorted(range(self._count), key=lambda number: self._jobs(number)):
                run = next((run for run in busy if run.waiting and self._ready_for(run, number)), None)
                if run is None:
                    continue
                worker = self._workers[number] or self._fork(number)
                if not worker.free:
                    continue
                job = run.waiting.popleft()
                try:
                    run.prepare(job, run.slots[worker.free[0]])
                except Exception as error:
                    run.fail(error)
                    continue
                run.with_workers += 1
                worker.send(run, job)

    def _jobs(self, number: int) -> int:
        worker = self._workers[number]
        return 0 if worker is None else len(worker.jobs)

    def _ready_for(self, run: PoolRun, number: int) -> bool:
        """Whether a worker can do a run's jobs; one that was forked before the run began ends once it is idle."""
        worker = self._workers[number]
        if worker is not None and run.number not in worker.runs and not worker.jobs:
            worker.end()
            self._workers[number] = worker = None
        return worker is None or run.number in worker.runs

    def _fork(self, number: int) -> "_Worker":
        with deferred_interrupt():
            others = [worker.pipe for worker in self._workers if worker is not None]
            slots = range(number * SLOTS, (number + 1) * SLOTS)
            self._workers[number] = worker = _Worker(dict(self._runs), slots, others)
        return worker

    def _receive(self, seconds: float | None) -> None:
        """What workers have done since, or will have done within so many seconds; None: wait for the first answer."""
        by_pipe = {worker.pipe: worker for worker in self._workers if worker is not None and worker.jobs}
        for pipe in wait(list(by_pipe), seconds):
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                run, job, answer, slot = worker.receive()
            except (EOFError, ConnectionResetError):
                self._handle_death(worker)
                continue
            run.with_workers -= 1
            run.done(job, answer, slot)

    def _handle_death(self, worker: "_Worker") -> None:
        """A worker has died: the runs that it worked for fail."""
        worker.end()
        self._workers = [None if one is worker else one for one in self._workers]
        for run, _, _ in worker.jobs:
            run.with_workers -= 1
            run.fail(
                CpflError(
                    f"a worker process ended unasked (exit code {worker.exitcode}), for want of memory perhaps: "
                    "resume the run, with fewer workers"
                )
            )


def do(trainer: Trainer, run: PoolRun, job: Job, slot: int) -> tuple[float, float | None] | list[float]:
    """A job's answer."""
    model = run.models[job.cohort]
    if job.kind == "evaluate":
        return trainer.evaluate(job, model)
    return trainer.train_client(job, model, run.slots[slot])


class _Worker:
    """A process, the runs that it knows, the jobs that it has, and the slots for results that it has left."""

    def __init__(self, runs: dict[int, PoolRun], slots: Sequence[int], others: Sequence[Connection]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.runs = runs
        self.jobs: deque[tuple[PoolRun, Job, int]] = deque()
        self.free = deque(slots)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks beside threads: ours share nothing
            start = multiprocessing.get_context("fork").Process
            self._process = start(target=serve, args=(runs, theirs, [*others, self.pipe]), daemon=True)
            self._process.start()
        theirs.close()

    def send(self, run: PoolRun, job: Job) -> None:
        self.jobs.append((run, job, self.free.popleft()))
        with contextlib.suppress(BrokenPipeError):  # it has died: the next reading says so
            self.pipe.send((run.number, job, self.jobs[-1][2]))

    def receive(self) -> tuple[PoolRun, Job, Any, int]:
        answer = self.pipe.recv()
        run, job, slot = self.jobs.popleft()
        self.free.append(slot)
        return run, job, answer, slot

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def end(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def serve(runs: dict[int, PoolRun], pipe: Connection, inherited: Sequence[Connection]) -> None:
    """In a worker: do jobs from the pipe until the main process closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # else a worker would not see the end of the main process
        other.close()
    gc.freeze()  # a collection would write into the memory that is shared
    torch.set_num_threads(1)
    keep_memory()
    trainers: dict[int, Trainer] = {}
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            number, job, slot = pipe.recv()
            try:
                if number not in trainers:
                    trainers[number] = Trainer(runs[number].task, runs[number].layout)
                answer: Any = do(trainers[number], runs[number], job, slot)
            except ModelError as error:
                answer = ModelError(str(error))
            except Exception:
                answer = RuntimeError(f"a worker process failed:\n{traceback.format_exc()}")
            pipe.send(answer)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Answer a Ctrl-C after this: Python prints and drops an exception in a function that it calls at a fork."""
    # Only the main thread is interrupted; a handler that is not Python's (None) cannot be put back.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came: list[int] = []
    # A blocked signal would reach another thread, and from there this one.
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def keep_memory() -> None:
    """Let this process keep freed memory: small models would spend some of their time on returning it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the largest value allowed
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
