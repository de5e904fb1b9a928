"""Batch schedules: which sample of a client in which step of its round, and how it is augmented.

The host draws them as small integers, ahead of time in processes of their own, since its own core is busy with the
lanes. Every draw has its address, so a worker draws the numbers that the main process would draw; a worker that is
missing, slow or dead costs time and nothing else. Axes: S steps, B batch.
"""

import contextlib
import json
import math
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpfl.federation import local_training
from cpfl.settings import Federation
from cpfl.task.task import Task

EMPTY = -1  # no sample
MAX_REQUESTS = 256  # that a worker may have before it: few enough for the pipes to hold them
PIPE_BYTES = 2**20  # that may wait to be read

BatchSchedule = tuple[NDArray[np.int32], NDArray[np.int8] | None]
"""Positions among the client's own samples (S, B), empty where a batch is short, and their augmentation (S, B, 5)."""


@dataclass(frozen=True)
class ClientRound:
    """One client's work in one round of its cohort."""

    cohort: int
    client: int
    round: int
    samples: int
    steps: int
    position: int = 0  # among the participants
    run: int = 0  # whose cohort it is


class Source(NamedTuple):
    """What a run's schedules depend on; without a shape nothing is augmented."""

    settings: Federation
    seed: int
    shape: tuple[int, ...] | None

    @classmethod
    def of(cls, task: Task) -> "Source":
        """The source of a task's schedules."""
        shape = task.data.train.shape if task.data.augmented else None
        return cls(task.experiment.federation, task.experiment.seed, shape)

    def draw(self, one: ClientRound) -> BatchSchedule:
        """The schedule of a client's round, drawn here."""
        return draw(*self, one.samples, one.client, one.round)


def draw(
    settings: Federation, seed: int, shape: tuple[int, ...] | None, samples: int, client: int, round: int
) -> BatchSchedule:
    """A client's batch schedule of a round; without a shape nothing is augmented."""
    batches = local_training.batches(settings, samples, seed, client, round)
    order_SB = np.full((len(batches), local_training.largest_batch(settings, samples)), EMPTY, np.int32)
    for row_B, batch in zip(order_SB, batches, strict=True):
        row_B[: len(batch)] = batch
    if shape is None:
        return order_SB, None
    augmentation_SB5 = np.zeros((*order_SB.shape, 5), np.int8)
    filled = order_SB != EMPTY
    augmentation_SB5[filled] = local_training.augmentation(int(filled.sum()), shape, seed, client, round)
    return order_SB, augmentation_SB5


def lay_out(
    own: NDArray[np.integer],
    schedule: BatchSchedule,
    steps: int,
    rows_SB: NDArray[np.int32],
    augmentation_SB5: NDArray[np.int8] | None = None,
) -> None:
    """Write the first steps of a schedule as rows of the training set."""
    order_SB, augmentation = schedule[0][:steps], schedule[1]
    width = order_SB.shape[1]  # less than that of the rows where a client holds fewer samples than a batch
    rows_SB[:steps, width:] = EMPTY
    rows_SB[:steps, :width] = np.where(order_SB == EMPTY, EMPTY, own[order_SB])
    if augmentation_SB5 is not None and augmentation is not None:
        augmentation_SB5[:steps, :width] = augmentation[:steps]


class ScheduleWorker:
    """A process that answers requests in their order."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cpfl.engines.lanes.batch_schedule"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        with contextlib.suppress(ImportError, OSError, AttributeError):  # not every system lets pipes grow
            import fcntl

            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._open: deque[ClientRound] = deque()
        self._alive = True

    def add(self, run: int, source: Source) -> None:
        """Make a run known, before its first request."""
        self._sources[run] = source
        about = {"run": run, "federation": source.settings.model_dump(), "seed": source.seed, "shape": source.shape}
        self._write(json.dumps(about).encode() + b"\n")

    @property
    def load(self) -> int:
        """Open requests; a dead worker takes no more."""
        return len(self._open) if self._alive else MAX_REQUESTS

    def request(self, one: ClientRound) -> None:
        """Ask for a client's schedule."""
        self._open.append(one)
        self._write(b"%d %d %d %d\n" % (one.run, one.samples, one.client, one.round))

    def next(self) -> tuple[ClientRound, BatchSchedule | None]:
        """Wait for the next answer; None: there will be no more."""
        one, data = self._open.popleft(), b""
        settings, _, augmented = self._sources[one.run]
        shape = local_training.steps(settings, one.samples), local_training.largest_batch(settings, one.samples)
        cells = math.prod(shape)
        size = cells * (4 if augmented is None else 9)  # bytes: a position, and its augmentation
        if self._alive:
            with contextlib.suppress(OSError):
                data = self._answers.read(size)
            self._alive = len(data) == size
        if not self._alive:
            return one, None
        order_SB, rest = np.frombuffer(data, np.int32, cells).reshape(shape), data[4 * cells :]
        return one, (order_SB, np.frombuffer(rest, np.int8).reshape(*shape, 5) if rest else None)

    def end(self) -> None:
        """Kill the process."""
        self._alive = False
        self._process.kill()
        self._process.communicate()  # closes the pipes

    def _write(self, data: bytes) -> None:
        try:
            self._requests.write(data)
            self._requests.flush()
        except OSError:
            self._alive = False


class ScheduleWorkers:
    """So many workers for the runs that are added."""

    def __init__(self, count: int) -> None:
        self.workers = [ScheduleWorker() for _ in range(count)]
        self._queued: dict[ClientRound, None] = {}  # requests that no worker has yet, in order
        self._with: dict[ClientRound, ScheduleWorker] = {}  # the worker of what is not taken yet
        self._made: dict[ClientRound, BatchSchedule] = {}

    def add(self, run: int, source: Source) -> None:
        """Make a run known, before its first request."""
        for worker in self.workers:
            worker.add(run, source)

    def request(self, client_rounds: Sequence[ClientRound]) -> None:
        """Ask for these schedules after earlier ones; requests wait while all workers are busy."""
        self._queued |= {one: None for one in client_rounds if one not in self._with}
        self._pass_on()

    def take(self, wanted: ClientRound) -> BatchSchedule | None:
        """A requested schedule; None: no worker has started on it, or its worker died."""
        self._queued.pop(wanted, None)
        worker = self._with.get(wanted)
        while worker is not None and wanted not in self._made:
            other, schedule = worker.next()
            if schedule is None:
                break
            if other in self._with:  # else it was forgotten
                self._made[other] = schedule
        self._with.pop(wanted, None)
        self._pass_on()
        return self._made.pop(wanted, None)

    def forget(self, one: ClientRound) -> None:
        """It will not be needed."""
        for known in (self._queued, self._with, self._made):
            known.pop(one, None)

    def _pass_on(self) -> None:
        while self._queued and self.workers:
            worker = min(self.workers, key=lambda worker: worker.load)
            if worker.load >= MAX_REQUESTS:
                return
            one = next(iter(self._queued))
            del self._queued[one]
            worker.request(one)
            self._with[one] = worker

    def end(self) -> None:
        """Kill the processes."""
        for worker in self.workers:
            worker.end()


def main() -> None:
    """A schedule worker: it ends when the main process closes its pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sources: dict[int, Source] = {}
    for request in requests:
        if request.startswith(b"{"):
            about = json.loads(request)
            shape = tuple(about["shape"]) if about["shape"] else None
            sources[about["run"]] = Source(Federation(**about["federation"]), about["seed"], shape)
            continue
        run, *address = map(int, request.split())
        order, augmentation = draw(*sources[run], *address)
        with contextlib.suppress(BrokenPipeError):
            answers.write(order.tobytes() + (b"" if augmentation is None else augmentation.tobytes()))
            answers.flush()


if __name__ == "__main__":
    main()
