"""Continuous batching of clients: L lanes, one step for all, no barrier between cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from cpfl import models
from cpfl.engines.base import OnRound
from cpfl.engines.lanes.judging import Judging
from cpfl.engines.lanes.shift import Shift
from cpfl.engines.lanes.stack import Layout
from cpfl.engines.lanes.step import Bench, Lanes
from cpfl.federation import local, selection
from cpfl.federation.session import Session
from cpfl.problem import Problem

BUSY = 0.85  # lanes for this share of the clients that could train at once: the rest waits a little, none idles
MOST = {"cuda": 128, "cpu": 16}
FEW = 16  # lanes of the small step that takes over when fewer clients are left


class LaneEngine:
    """Trains the clients of all cohorts side by side on one device."""

    name = "lanes"

    def __init__(self, problem: Problem, device: torch.device, lanes: int = 0, compiled: bool = True) -> None:
        experiment = problem.experiment
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
        """As many as can be kept busy: a cohort's round lasts as long as its longest client, so with skewed sizes far
        fewer clients train at once than take part."""
        settings = problem.experiment.federation
        at_once = 0.0
        for clients in problem.plan:
            steps = local.all_steps(settings, problem.data.clients.training_sizes[clients])
            share = selection.size(settings, len(clients)) / len(clients)
            at_once += max(1.0, share * float(steps.sum() / steps.max()))
        wanted = 8 * max(1, round(BUSY * at_once / 8))
        return min(wanted, MOST.get(device.type, MOST["cpu"]), problem.experiment.clients)

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        going = [session for session in sessions if not session.idle]
        if going:
            with models.threads(1):
                Shift(self._bench, self._large, self._few, lambda: self._small, self._judging, going, on_round).work()
