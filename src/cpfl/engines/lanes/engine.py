"""Continuous batching of clients: L lanes, one step for all, no barrier between cohorts."""

import gc
import heapq
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from cpfl import models
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.gpu_errors import out_of_memory
from cpfl.engines.lanes.batch_schedule import ScheduleWorkers
from cpfl.engines.lanes.buffers import DeviceBuffers
from cpfl.engines.lanes.evaluation import Evaluator, EvaluatorKind
from cpfl.engines.lanes.member import Member, Rows, largest_batch
from cpfl.engines.lanes.scheduler import Scheduler
from cpfl.engines.lanes.step import Lanes
from cpfl.federation import local_training
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.settings import Federation
from cpfl.task.task import Task

MOST = {"cuda": 128, "cpu": 16}
SCHEDULE_WORKERS = {"cuda": 2}  # on a CPU they would take cores from the training
FEWEST = 4
OVERHEAD = 12  # lanes whose work takes as long as the rest of a step: measured on an H200
SMALL = 16  # lanes of the small step, which takes over when fewer clients are left


class LaneEngine(Engine):
    """Trains the clients of all cohorts side by side on one device; of several runs, if they share it."""

    name = "lanes"
    living: ClassVar[weakref.WeakSet["LaneEngine"]] = weakref.WeakSet()
    """All of this process. While there is one, the compiler must not be reset: that would unload kernels which its
    graphs launch."""

    def __init__(
        self,
        task: Task | Sequence[Task],
        device: torch.device,
        lanes: int = 0,
        schedule_workers: int | None = None,
        room: Rows | None = None,
        others: Sequence[Federation] = (),
    ) -> None:
        """For a task, or for the first of the runs that share the lanes: the same samples, model and client optimizer.

        Then there is `room` for so many runs at a time, and `others` are the settings of all that will come.
        """
        tasks = [task] if isinstance(task, Task) else list(task)
        self.device = device.type
        # Before anything is compiled: they need a few seconds to start.
        workers = SCHEDULE_WORKERS.get(device.type, 0) if schedule_workers is None else schedule_workers
        self.schedules = ScheduleWorkers(workers)
        weakref.finalize(self, self.schedules.end)
        models.choose_arithmetic(tasks[0].experiment.precision)
        self.buffers = DeviceBuffers(tasks, device, room or Rows.of(tasks[0]), others)
        count = lanes or self.default_lanes(tasks, device)
        self.large = Lanes(self.buffers, count)
        self._evaluators: dict[EvaluatorKind, Evaluator] = {}
        self.small_count = SMALL if device.type == "cuda" and count > 2 * SMALL else 0
        self.living.add(self)
        self.alone = self.admit(tasks[0]) if isinstance(task, Task) else None
        if self.alone is not None:
            self.evaluator(self.alone)  # what it needs is captured before anything trains

    def admit(self, task: Task) -> Member | None:
        """Take in a run; None: there is no room for it now."""
        member = self.buffers.admit(task)
        if member is not None:
            self.schedules.add(member.number, member.source)
        return member

    def fits(self, task: Task) -> bool:
        """Whether a task's samples are those of these lanes, its batches fit, and its model is the same one, in what
        is not trained too."""
        if self.buffers.task.data.train.fingerprint() != task.data.train.fingerprint():
            return False
        ours, theirs = self.buffers.task.layout(), task.layout()
        constant = {**ours.frozen, **ours.buffers}.items()
        others = {**theirs.frozen, **theirs.buffers}
        same = ours.shapes == theirs.shapes and ours.ties == theirs.ties and len(constant) == len(others)
        same = same and all(name in others and torch.equal(value, others[name]) for name, value in constant)
        return same and largest_batch(task) <= self.buffers.batch

    def evaluator(self, member: Member) -> Evaluator:
        """The one for a run's cohorts."""
        kind = EvaluatorKind.of(member, self.buffers.device)
        if kind not in self._evaluators:
            self._evaluators[kind] = Evaluator(self.buffers, kind)
        return self._evaluators[kind]

    @cached_property
    def _small(self) -> Lanes:
        return Lanes(self.buffers, self.small_count)

    def small_lanes(self) -> Lanes | None:
        """The small lanes, made when they are first needed; None, from then on, if there is no memory for them."""
        try:
            return self._small
        except Exception as error:
            if not out_of_memory(error):
                raise
        # Outside the handler, whose traceback holds the unfinished lanes.
        self.small_count = 0
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()  # warm-ups may still be running, in memory that is free by now
            torch.cuda.empty_cache()
        return None

    @staticmethod
    def default_lanes(task: Task | Sequence[Task], device: torch.device) -> int:
        """The number that does a round of all cohorts soonest."""
        tasks = [task] if isinstance(task, Task) else task
        rounds = []
        for own, clients in ((each, cohort) for each in tasks for cohort in each.cohorts):
            settings = own.experiment.federation
            steps = np.sort(local_training.all_steps(settings, own.data.clients.training_sizes[clients]))[::-1]
            taking_part = np.linspace(0, len(steps) - 1, participants_per_round(settings, len(steps))).astype(np.int64)
            rounds.append(steps[taking_part].tolist())
        most = min(MOST.get(device.type, MOST["cpu"]), sum(each.experiment.clients for each in tasks))
        counts = range(FEWEST, most + 1, FEWEST) if most >= FEWEST else [most]
        return min(counts, key=lambda count: (OVERHEAD + count) * steps_of_all(rounds, count))

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions of the only run."""
        assert self.alone is not None, "runs that share lanes are added to a scheduler"
        if active := [session for session in sessions if not session.idle]:
            with models.threads(1):
                scheduler = Scheduler(self)
                training = scheduler.add(self.alone, active, on_round)
                scheduler.work()
            if training.error is not None:
                raise training.error


def steps_of_all(rounds: Sequence[Sequence[int]], lanes: int) -> int:
    """A lower bound of the steps until every cohort has done a round: all lanes full, or the slowest cohort alone.

    A round is its clients' steps, the most first.
    """
    return max(-(-sum(map(sum, rounds)) // lanes), *(alone(steps, lanes) for steps in rounds))


def alone(steps: Sequence[int], lanes: int) -> int:
    """Steps of one cohort's round in lanes of its own: the lane that is free first takes the longest client."""
    free = [0] * lanes
    for count in steps:
        heapq.heapreplace(free, free[0] + count)
    return max(free)
