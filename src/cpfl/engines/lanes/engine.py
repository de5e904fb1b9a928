"""Continuous batching of clients: L lanes, one step for all, no barrier between cohorts."""

from __future__ import annotations

import gc
import heapq
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.lanes.judging import Judging
from cpfl.engines.lanes.planners import Planners
from cpfl.engines.lanes.shift import Shift
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.step import Bench, Lanes
from cpfl.engines.mishaps import short_of_memory
from cpfl.federation import local, selection
from cpfl.federation.session import Session
from cpfl.problem import Problem

MOST = {"cuda": 128, "cpu": 16}
PLANNERS = {"cuda": 2}  # processes; on a CPU they would take cores from the training
FEWEST = 4
OVERHEAD = 12  # lanes whose work takes as long as what a step costs besides: measured on an H200
FEW = 16  # lanes of the small step that takes over when fewer clients are left


class LaneEngine:
    """Trains the clients of all cohorts side by side on one device."""

    name = "lanes"
    living: ClassVar[weakref.WeakSet[LaneEngine]] = weakref.WeakSet()
    """All of this process. While there is one, the compiler must not be reset: that would unload kernels which its
    graphs launch."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        lanes: int = 0,
        compiled: bool = True,
        planners: int | None = None,
    ) -> None:
        experiment = problem.experiment
        # Before anything is compiled: they need a few seconds to come up.
        self._planners = Planners(problem, PLANNERS.get(device.type, 0) if planners is None else planners)
        weakref.finalize(self, self._planners.end)
        models.choose_arithmetic(experiment.precision)
        module = models.fresh(problem.build, experiment.seed, "init", problem.data.transform.dtype).to(device).train()
        self._bench = Bench(problem, module, Layout.of(module), device)
        at_once = lanes or self.default_lanes(problem, device)
        self._compiled = device.type == "cuda" and compiled
        self._large = Lanes(self._bench, at_once, self._compiled)
        self._judging = Judging(self._bench)
        self._few = FEW if device.type == "cuda" and at_once > 2 * FEW else 0
        self.living.add(self)

    @cached_property
    def _small(self) -> Lanes:
        return Lanes(self._bench, self._few, self._compiled)

    def _fewer(self) -> Lanes | None:
        """The small lanes, made when they are first needed; none, for good, if there is no memory for them."""
        try:
            return self._small
        except Exception as error:
            if not short_of_memory(error):
                raise
        # Outside the handler, whose traceback holds what was begun.
        self._few = 0
        gc.collect()
        if self._bench.device.type == "cuda":
            torch.cuda.synchronize()  # trials may still be running, in memory that is free by now
            torch.cuda.empty_cache()
        return None

    @staticmethod
    def default_lanes(problem: Problem, device: torch.device) -> int:
        """As many as do a round of all cohorts soonest."""
        settings = problem.experiment.federation
        rounds = []
        for clients in problem.plan:
            steps = np.sort(local.all_steps(settings, problem.data.clients.training_sizes[clients]))[::-1]
            taking_part = np.linspace(0, len(steps) - 1, selection.size(settings, len(steps))).astype(np.int64)
            rounds.append(steps[taking_part].tolist())
        most = min(MOST.get(device.type, MOST["cpu"]), problem.experiment.clients)
        counts = range(FEWEST, most + 1, FEWEST) if most >= FEWEST else [most]
        return min(counts, key=lambda count: (OVERHEAD + count) * steps_of_all(rounds, count))

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        going = [session for session in sessions if not session.idle]
        if going:
            with models.threads(1):
                self._shift(going, on_round).work()

    def _shift(self, going: Sequence[Session], on_round: OnRound) -> Shift:
        return Shift(self._bench, self._large, self._few, self._fewer, self._judging, self._planners, going, on_round)


def steps_of_all(rounds: Sequence[Sequence[int]], lanes: int) -> int:
    """Steps until every cohort has done a round, at the least: all lanes full, or the cohort that takes longest by
    itself. A round is its clients' steps, the most first."""
    return max(-(-sum(map(sum, rounds)) // lanes), *(alone(steps, lanes) for steps in rounds))


def alone(steps: Sequence[int], lanes: int) -> int:
    """Steps of one cohort's round in lanes of its own: whichever is free takes the client with the most."""
    if len(steps) <= lanes:
        return steps[0]
    free = [0] * lanes
    for count in steps:
        heapq.heapreplace(free, free[0] + count)
    return max(free)
