"""Processes that train and evaluate side by side, each with a trainer of its own and models in shared memory.

They are forked, so that the data are in memory already and only once. A worker has two slots for results, so that it
continues while the last result is read.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NoReturn

import torch
from numpy.typing import NDArray

from cpfl import models
from cpfl.engines.workers.model_rows import ClientStates, model_rows, shared
from cpfl.engines.workers.trainer import Trainer
from cpfl.errors import CpflError, ModelError
from cpfl.federation import optimizers
from cpfl.models.layout import Layout
from cpfl.task.task import Task

SLOTS = 2  # results of one worker that may wait to be read


@dataclass(frozen=True)
class Job:
    """A client to train, or a model to evaluate on some clients' validation samples."""

    kind: Literal["train", "evaluate"]
    cohort: int
    clients: tuple[int, ...]
    round: int
    steps: int | None = None  # only so many, the first ones
    squared_losses: bool = False  # the sum of the squared sample losses is wanted
    start: dict[str, NDArray[Any]] | None = None  # an older model to start from instead of the cohort's newest


OnDone = Callable[[Job, Any, int], None]
"""(job, its answer, slot of the trained model): the slot is free again after the call."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether workers can be forked here: not beside a GPU, whose threads would not survive."""
    return sys.platform == "linux" and not torch.cuda.is_available()


class WorkerPool:
    """So many workers, with the shared rows of the cohorts' models, of results by slot, and of per-client state."""

    def __init__(self, task: Task, count: int, layout: Layout) -> None:
        experiment, self._task, self._count, self._layout = task.experiment, task, count, layout
        self.states: ClientStates | None = None
        if optimizers.client_optimizer(experiment.federation).has_client_state:
            counts, dtype = (experiment.clients, experiment.cohorts, count * SLOTS), task.data.transform.dtype
            self.states = ClientStates(*(shared(number, layout.size, dtype) for number in counts))
        self.models, self.slots = (model_rows(task, layout, k) for k in (experiment.cohorts, count * SLOTS))
        self.waiting: deque[Job] = deque()

    def work(self, on_done: OnDone) -> None:
        """Do all jobs that wait and that `on_done` adds."""
        with models.threads(1):  # a second thread of the main process would wait for a core that a worker has
            if self._count > 1:
                self._together(on_done)
                return
            with torch.random.fork_rng(devices=[]):
                trainer = Trainer(self._task, self._layout)
                while self.waiting:
                    job = self.waiting.popleft()
                    on_done(job, self._do(trainer, job, 0), 0)

    def _do(self, trainer: Trainer, job: Job, slot: int) -> tuple[float, float | None] | list[float]:
        if job.kind == "evaluate":
            return trainer.evaluate(self.models[job.cohort], job.clients, job.round)
        start, client, states = self.models[job.cohort], job.clients[0], self.states
        if job.start is not None:
            start = trainer.older({name: torch.from_numpy(value) for name, value in job.start.items()})
        rows = (states.clients_MP[client], states.means_NP[job.cohort], states.new_SP[slot]) if states else None
        return trainer.train(start, self.slots[slot], client, job.round, job.steps, job.squared_losses, rows)

    def _together(self, on_done: OnDone) -> None:
        workers: list[_Worker] = []
        try:
            for number in range(self._count):
                workers.append(_Worker(self, number, [w.pipe for w in workers]))
            by_pipe = {worker.pipe: worker for worker in workers}
            while self.waiting or any(worker.jobs for worker in workers):
                for _ in range(SLOTS):  # one each, then a second each
                    for worker in sorted(workers, key=lambda w: len(w.jobs)):
                        if self.waiting and len(worker.jobs) < SLOTS:
                            worker.send(self.waiting.popleft())
                for pipe in wait([worker.pipe for worker in workers if worker.jobs]):
                    assert isinstance(pipe, Connection)
                    on_done(*by_pipe[pipe].receive())
        finally:
            for worker in workers:
                worker.end()

    def serve(self, pipe: Connection, number: int) -> None:
        """Do jobs from the pipe until the main process closes it."""
        torch.set_num_threads(1)
        keep_memory()
        trainer, turn = Trainer(self._task, self._layout), 0
        while True:
            try:
                job = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            slot = number * SLOTS + turn
            turn = (turn + 1) % SLOTS
            try:
                answer: tuple[str, Any] = ("done", self._do(trainer, job, slot))
            except ModelError as error:
                answer = ("model", str(error))
            except Exception:
                answer = ("broken", traceback.format_exc())
            pipe.send((*answer, slot))


class _Worker:
    """A process, and the jobs that it has."""

    def __init__(self, pool: WorkerPool, number: int, others: list[Connection]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.jobs: deque[Job] = deque()

        def run() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for pipe in (*others, self.pipe):  # else a worker would not see the end of the main process
                pipe.close()
            with contextlib.suppress(BrokenPipeError):
                pool.serve(theirs, number)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks beside threads: ours share nothing
            self._process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
            self._process.start()
        theirs.close()

    def send(self, job: Job) -> None:
        self.jobs.append(job)
        try:
            self.pipe.send(job)
        except BrokenPipeError:
            self._raise_dead()

    def receive(self) -> tuple[Job, Any, int]:
        try:
            state, answer, slot = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._raise_dead()
        if state == "model":
            raise ModelError(answer)
        if state == "broken":
            raise RuntimeError(f"a worker process failed:\n{answer}")
        return self.jobs.popleft(), answer, slot

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


def keep_memory() -> None:
    """Let this process keep freed memory: small models would spend some of their time on returning it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the largest value allowed
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
