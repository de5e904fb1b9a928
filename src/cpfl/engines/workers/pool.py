"""Processes that train and evaluate side by side, each with a trainer of its own and models in shared memory.

They are forked, so that the data are in memory already and only once. A worker has two slots for results, so that it
continues while the last result is read.
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

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


class WorkerPool:
    """So many workers, with the shared rows of the cohorts' models and of results."""

    def __init__(self, task: Task, count: int, layout: Layout) -> None:
        self._task, self._count, self._layout = task, count, layout
        self.models = model_rows(task, layout, task.experiment.cohorts)
        self.slots = model_rows(task, layout, count * SLOTS)
        self.waiting: deque[Job] = deque()

    def work(self, prepare: Prepare, on_done: OnDone) -> None:
        """Do all jobs that wait and that `on_done` adds."""
        with models.threads(1):  # a second thread of the main process would wait for a core that a worker has
            if self._count > 1:
                self._in_processes(prepare, on_done)
                return
            with torch.random.fork_rng(devices=[]):
                trainer = Trainer(self._task, self._layout)
                while self.waiting:
                    job = self.waiting.popleft()
                    prepare(job, self.slots[0])
                    on_done(job, self._do(trainer, job, 0), self.slots[0])

    def _do(self, trainer: Trainer, job: Job, slot: int) -> tuple[float, float | None] | list[float]:
        model = self.models[job.cohort]
        if job.kind == "evaluate":
            return trainer.evaluate(job, model)
        return trainer.train_client(job, model, self.slots[slot])

    def _in_processes(self, prepare: Prepare, on_done: OnDone) -> None:
        workers: list[_Worker] = []
        # A collection writes into every object that it looks at, which would copy the memory that forks share.
        frozen = gc.get_freeze_count()
        gc.collect(1)  # what is young and dead would be kept until somebody collects everything
        gc.freeze()
        try:
            with deferred_interrupt():
                for number in range(self._count):
                    slots = range(number * SLOTS, (number + 1) * SLOTS)
                    workers.append(_Worker(self.serve, slots, [worker.pipe for worker in workers]))
            by_pipe = {worker.pipe: worker for worker in workers}
            while self.waiting or any(worker.jobs for worker in workers):
                for _ in range(SLOTS):  # one each, then a second each
                    for worker in sorted(workers, key=lambda w: len(w.jobs)):
                        if self.waiting and worker.free:
                            job = self.waiting.popleft()
                            prepare(job, self.slots[worker.free[0]])
                            worker.send(job)
                for pipe in wait([worker.pipe for worker in workers if worker.jobs]):
                    assert isinstance(pipe, Connection)
                    job, answer, slot = by_pipe[pipe].receive()
                    on_done(job, answer, self.slots[slot])
        finally:
            for worker in workers:
                worker.end()
            if not frozen:  # else objects of somebody else's would be collected again
                gc.unfreeze()

    def serve(self, pipe: Connection, inherited: Sequence[Connection]) -> None:
        """In a worker: do jobs from the pipe until the main process closes it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in inherited:  # else a worker would not see the end of the main process
            other.close()
        torch.set_num_threads(1)
        keep_memory()
        trainer = Trainer(self._task, self._layout)
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            while True:
                job, slot = pipe.recv()
                try:
                    answer: Any = self._do(trainer, job, slot)
                except ModelError as error:
                    answer = ModelError(str(error))
                except Exception:
                    answer = RuntimeError(f"a worker process failed:\n{traceback.format_exc()}")
                pipe.send(answer)


class _Worker:
    """A process, the jobs that it has, and the slots for results that it has left."""

    def __init__(self, serve: Callable[..., None], slots: Iterable[int], others: Sequence[Connection]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.jobs: deque[tuple[Job, int]] = deque()
        self.free = deque(slots)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks beside threads: ours share nothing
            start = multiprocessing.get_context("fork").Process
            self._process = start(target=serve, args=(theirs, [*others, self.pipe]), daemon=True)
            self._process.start()
        theirs.close()

    def send(self, job: Job) -> None:
        self.jobs.append((job, self.free.popleft()))
        try:
            self.pipe.send(self.jobs[-1])
        except BrokenPipeError:
            self._raise_dead()

    def receive(self) -> tuple[Job, Any, int]:
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._raise_dead()
        if isinstance(answer, Exception):
            raise answer
        job, slot = self.jobs.popleft()
        self.free.append(slot)
        return job, answer, slot

    def _raise_dead(self) -> NoReturn:
        self._process.join(1)
        raise CpflError(
            f"a worker process ended unasked (exit code {self._process.exitcode}), for want of memory perhaps: "
            "resume the run, with fewer workers"
        ) from None

    def end(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join()


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
