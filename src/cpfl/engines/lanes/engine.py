"""Continuous batching of clients: L lanes, one step for all, no barrier between cohorts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property

import torch

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.lanes.judging import Judging
from cpfl.engines.lanes.planners import Planners
from cpfl.engines.lanes.shift import Shift
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.step import Bench, Lanes
from cpfl.federation import local, selection
from cpfl.federation.session import Session
from cpfl.problem import Problem

MOST = {"cuda": 128, "cpu": 16}
PLANNERS = {"cuda": 2}  # processes; on a CPU they would take cores from the training
FEW = 16  # lanes of the small step that takes over when fewer clients are left


class LaneEngine:
    """Trains the clients of all cohorts side by side on one device."""

    name = "lanes"

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

    @cached_property
    def _small(self) -> Lanes:
        return Lanes(self._bench, self._few, self._compiled)

    @staticmethod
    def default_lanes(problem: Problem, device: torch.device) -> int:
        """As many as can be kept busy to the end: the cohort of the longest client needs so many steps for a round,
        and all other work must fit beside it."""
        settings = problem.experiment.federation
        total, longest = 0.0, 1.0
        for clients in problem.plan:
            steps = local.all_steps(settings, problem.data.clients.training_sizes[clients])
            total += float(steps.mean()) * selection.size(settings, len(clients))
            longest = max(longest, float(steps.max()))
        wanted = 8 * max(1, round(total / longest / 8))
        return min(wanted, MOST.get(device.type, MOST["cpu"]), problem.experiment.clients)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        going = [session for session in sessions if not session.idle]
        if going:
            with models.threads(1):
                self._shift(going, on_round).work()

    def _shift(self, going: Sequence[Session], on_round: OnRound) -> Shift:
        small = lambda: self._small  # noqa: E731  (made when it is needed)
        return Shift(self._bench, self._large, self._few, small, self._judging, self._planners, going, on_round)
