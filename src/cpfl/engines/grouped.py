"""Cohorts that train different models: an engine for each model, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpfl.engines.base import Engine, OnRound
from cpfl.federation.session import Session
from cpfl.problem import Problem


class GroupedEngine:
    """Sends every session to the engine that knows its model."""

    def __init__(self, problem: Problem, make: Callable[[Problem], Engine]) -> None:
        groups: dict[int, list[int]] = {}
        for cohort in range(len(problem.plan)):
            groups.setdefault(id(problem.of(cohort).build), []).append(cohort)
        self._engines = [(set(cohorts), make(problem.of(cohorts[0]))) for cohorts in groups.values()]
        # What resume asks for again: an engine that had to give way to the reference for one model does so again.
        self.name = next((one.name for _, one in self._engines if one.name != "reference"), "reference")

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds that the sessions open."""
        for cohorts, one in self._engines:
            one.federate([session for session in sessions if session.cohort in cohorts], on_round)
