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
from cpfl.engines.lanes.evaluation import Evaluator
from cpfl.engines.lanes.scheduler import Scheduler
from cpfl.engines.lanes.step import Lanes
from cpfl.federation import local_training
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.task.task import Task

MOST = {"cuda": 128, "cpu": 16}
SCHEDULE_WORKERS = {"cuda": 2}  # on a CPU they would take cores from the training
FEWEST = 4
OVERHEAD = 12  # lanes whose work takes as long as the rest of a step: measured on an H200
SMALL = 16  # lanes of the small step, which takes over when fewer clients are left


class LaneEngine(Engine):
    """Trains the clients of all cohorts side by side on one device."""

    name = "lanes"
    living: ClassVar[weakref.WeakSet["LaneEngine"]] = weakref.WeakSet()
    """All of this process. While there is one, the compiler must not be reset: that would unload kernels which its
    graphs launch."""

    def __init__(self, task: Task, device: torch.device, lanes: int = 0, schedule_workers: int | None = None) -> None:
        self.device = device.type
        # Before anything is compiled: they need a few seconds to start.
        workers = SCHEDULE_WORKERS.get(device.type, 0) if schedule_workers is None else schedule_workers
        self.schedules = ScheduleWorkers(task, workers)
        weakref.finalize(self, self.schedules.end)
        models.choose_arithmetic(task.experiment.precision)
        self.buffers = DeviceBuffers(task, device)
        count = lanes or self.default_lanes(task, device)
        self.large = Lanes(self.buffers, count)
        self.evaluator = Evaluator(self.buffers)
        self.small_count = SMALL if device.type == "cuda" and count > 2 * SMALL else 0
        self.living.add(self)

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
    def default_lanes(task: Task, device: torch.device) -> int:
        """The number that does a round of all cohorts soonest."""
        settings = task.experiment.federation
        rounds = []
        for clients in task.cohorts:
            steps = np.sort(local_training.all_steps(settings, task.data.clients.training_sizes[clients]))[::-1]
            taking_part = np.linspace(0, len(steps) - 1, participants_per_round(settings, len(steps))).astype(np.int64)
            rounds.append(steps[taking_part].tolist())
        most = min(MOST.get(device.type, MOST["cpu"]), task.experiment.clients)
        counts = range(FEWEST, most + 1, FEWEST) if most >= FEWEST else [most]
        return min(counts, key=lambda count: (OVERHEAD + count) * steps_of_all(rounds, count))

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        if active := [session for session in sessions if not session.idle]:
            with models.threads(1):
                Scheduler(self, active, on_round).work()


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
