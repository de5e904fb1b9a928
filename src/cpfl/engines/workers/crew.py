"""Processes that train and judge side by side, each with a trainer of its own and models in shared memory.

They are forked, so that the data are there already and are held once. A worker has two slots for results, so that it
goes on while the last one is read.
"""

from __future__ import annotations

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
from typing import Any

import torch
from numpy.typing import NDArray

from cpfl import models
from cpfl.engines.workers.form import Form, Rows
from cpfl.engines.workers.trainer import Kept, Trainer, models_form
from cpfl.errors import CpflError, ModelError
from cpfl.federation import parts
from cpfl.problem import Problem

SLOTS = 2  # results of one worker that may wait to be read


@dataclass(frozen=True)
class Job:
    """A client to train, or clients to judge a model by."""

    kind: str  # train or judge
    place: int  # of the cohort's model
    clients: tuple[int, ...]
    round: int
    steps: int | None = None  # only so many, the first ones
    squares: bool = False  # the sum of the squared sample losses is wanted
    start: dict[str, NDArray[Any]] | None = None  # an older model to begin with instead of the cohort's


Done = Callable[[Job, Any, int], None]
"""(job, loss and squares, or losses, slot of the trained model): the slot is free again after the call."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether workers can be forked here: not with a GPU about, whose threads would not survive."""
    return sys.platform == "linux" and not torch.cuda.is_available()


class Crew:
    """So many workers. Models of cohorts lie in `places`, results in `slots`, what clients keep in `kept`."""

    def __init__(self, problem: Problem, count: int, parameters: Form) -> None:
        form, experiment = models_form(problem), problem.experiment
        self.kept: Kept | None = None
        if parts.local_part(experiment.federation).keeps_rows:
            rows = (experiment.clients, experiment.cohorts, count * SLOTS)
            self.kept = Kept(*(parameters.rows(number) for number in rows))
        self.places, self.slots = form.rows(experiment.cohorts), form.rows(count * SLOTS)
        self._problem, self._count = problem, count
        self.waiting: deque[Job] = deque()

    def work(self, on_done: Done) -> None:
        """Do all jobs that wait and that `on_done` adds."""
        with models.threads(1):  # a second one of the main process would wait for a core that a worker has
            if self._count == 1:
                self._alone(on_done)
            else:
                self._together(on_done)

    def _alone(self, on_done: Done) -> None:
        with torch.random.fork_rng(devices=[]):
            trainer = Trainer(self._problem)
            while self.waiting:
                job = self.waiting.popleft()
                on_done(job, _do(trainer, self.places, self.slots, self.kept, job, 0), 0)

    def _together(self, on_done: Done) -> None:
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
        """A worker's life."""
        torch.set_num_threads(1)
        keep_memory()
        trainer, turn = Trainer(self._problem), 0
        while True:
            try:
                job = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            slot = number * SLOTS + turn
            turn = (turn + 1) % SLOTS
            try:
                answer: tuple[str, Any] = ("done", _do(trainer, self.places, self.slots, self.kept, job, slot))
            except ModelError as error:
                answer = ("model", str(error))
            except Exception:
                answer = ("broken", traceback.format_exc())
            pipe.send((*answer, slot))


class _Worker:
    """A process, and the jobs that it has."""

    def __init__(self, crew: Crew, number: int, others: list[Connection]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.jobs: deque[Job] = deque()

        def live() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for pipe in (*others, self.pipe):  # else a worker would not see that the main process is gone
                pipe.close()
            with contextlib.suppress(BrokenPipeError):
                crew.serve(theirs, number)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: ours touch nothing shared
            self._process = multiprocessing.get_context("fork").Process(target=live, daemon=True)
            self._process.start()
        theirs.close()

    def send(self, job: Job) -> None:
        self.jobs.append(job)
        try:
            self.pipe.send(job)
        except BrokenPipeError:
            self._gone()

    def receive(self) -> tuple[Job, Any, int]:
        try:
            state, answer, slot = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._gone()
        if state == "model":
            raise ModelError(answer)
        if state == "broken":
            raise RuntimeError(f"a worker process failed:\n{answer}")
        return self.jobs.popleft(), answer, slot

    def _gone(self) -> None:
        self._process.join(1)
        raise CpflError(
            f"a worker process ended unasked (exit code {self._process.exitcode}), for want of memory perhaps: "
            "resume the run, with fewer --workers"
        ) from None

    def end(self) -> None:
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def keep_memory() -> None:
    """Let this process keep what it frees: small models would spend some of their time on handing memory back."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: the most that it takes
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD


def _do(
    trainer: Trainer, places: Rows, slots: Rows, kept: Kept | None, job: Job, slot: int
) -> tuple[float, float | None] | list[float]:
    if job.kind == "train":
        start, place = (places, job.place) if job.start is None else (trainer.older(job.start), 0)
        return trainer.train(start, place, slots, slot, job.clients[0], job.round, kept, job.steps, job.squares)
    return trainer.judge(places, job.place, job.clients, job.round)
