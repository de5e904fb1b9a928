"""Plans made ahead by processes of their own, for the host's own core has enough to do with the lanes.

A planner reads requests from its standard input and answers in their order; the same numbers come out as in the main
process, since every draw has its address. One that is missing, slow or dead costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import IO

import numpy as np

from cpfl.engines.lanes.plans import Plan, Task, draw
from cpfl.experiment import Federation
from cpfl.problem import Problem

UNDER_WAY = 256  # requests that a planner may have before it: few enough for the pipes to hold them
PIPE = 2**20  # bytes that may wait to be read
REQUEST = struct.Struct("<qqq")  # client, samples, round
Key = tuple[int, int]  # client, round


class Planner:
    """A process, and what it was asked for."""

    def __init__(self, header: bytes) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cpfl.engines.lanes.planners"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        with contextlib.suppress(ImportError, OSError, AttributeError):  # not every system lets pipes grow
            import fcntl

            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, PIPE)
        self._asked: deque[Key] = deque()
        self._alive = True
        self._write(header)

    @property
    def load(self) -> int:
        """Requests before it; too many to ask for more, if it is dead."""
        return len(self._asked) if self._alive else UNDER_WAY

    def ask(self, client: int, samples: int, round: int) -> None:
        """Have a client's round planned."""
        self._asked.append((client, round))
        self._write(REQUEST.pack(client, samples, round))

    def next(self) -> tuple[Key, Plan | None]:
        """The next answer, waited for; None: there will be no more."""
        key = self._asked.popleft()
        plan = None
        if self._alive:
            with contextlib.suppress(OSError):
                plan = _read(self._answers)
            self._alive = plan is not None
        return key, plan

    def end(self) -> None:
        """Nothing more is asked."""
        self._alive = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def _write(self, data: bytes) -> None:
        try:
            self._requests.write(data)
            self._requests.flush()
        except OSError:
            self._alive = False


class Planners:
    """So many planners for one problem."""

    def __init__(self, problem: Problem, count: int) -> None:
        data, experiment = problem.data, problem.experiment
        shape = list(data.train.shape) if data.augmented else None
        words = {"federation": experiment.federation.model_dump(), "seed": experiment.seed, "shape": shape}
        header = json.dumps(words).encode() + b"\n"
        self._planners = [Planner(header) for _ in range(count)]
        self._with: dict[Key, Planner] = {}  # who was asked for what is not taken yet
        self._made: dict[Key, Plan] = {}

    def ask(self, tasks: Sequence[Task], sizes: Sequence[int]) -> None:
        """Have these planned, the first ones first; what is too much for now is left to the one who needs it."""
        for task in tasks:
            planner = min(self._planners, key=lambda planner: planner.load, default=None)
            if planner is None or planner.load >= UNDER_WAY:
                return
            planner.ask(task.client, sizes[task.client], task.round)
            self._with[task.client, task.round] = planner

    def take(self, task: Task) -> Plan | None:
        """A task's plan; None: nobody was asked for it, or could make it."""
        key = task.client, task.round
        planner = self._with.get(key)
        while planner is not None and key not in self._made:
            other, plan = planner.next()
            if plan is None:
                break
            if other in self._with:  # else it was forgotten
                self._made[other] = plan
        self._with.pop(key, None)
        return self._made.pop(key, None)

    def forget(self, task: Task) -> None:
        """It will not be needed."""
        self._with.pop((task.client, task.round), None)
        self._made.pop((task.client, task.round), None)

    def end(self) -> None:
        """Let the processes go."""
        for planner in self._planners:
            planner.end()


def _read(answers: IO[bytes]) -> Plan | None:
    head = answers.read(8)
    if len(head) < 8:
        return None
    count, columns = struct.unpack("<ii", head)
    data = answers.read(count * (4 + columns))
    if len(data) < count * (4 + columns):
        return None
    order = np.frombuffer(data, np.int32, count)
    return order, np.frombuffer(data, np.int8, offset=4 * count).reshape(count, columns) if columns else None


def main() -> None:
    """A planner's life: it ends when nobody writes to it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to answer
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    words = json.loads(requests.readline())
    settings, seed, shape = Federation(**words["federation"]), words["seed"], words["shape"]
    while len(request := requests.read(REQUEST.size)) == REQUEST.size:
        client, samples, round = REQUEST.unpack(request)
        order, plan = draw(settings, seed, tuple(shape) if shape else None, samples, client, round)
        with contextlib.suppress(BrokenPipeError):
            answers.write(struct.pack("<ii", len(order), 0 if plan is None else plan.shape[1]))
            answers.write(order.tobytes() + (b"" if plan is None else plan.tobytes()))
            answers.flush()


if __name__ == "__main__":
    main()
