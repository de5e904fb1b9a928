"""The stopping rule `joint`: at the end of every phase the ensemble of all cohorts is evaluated.

Then all continue or all stop. Each evaluation is a line of evaluations.jsonl.
"""

import math
from collections.abc import Sequence

import torch

from cpfl.distillation.evaluation import EVALUATORS
from cpfl.errors import DamagedError
from cpfl.federation import stopping
from cpfl.federation.messages import Cost
from cpfl.federation.selection.base import round_cpu_seconds
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING, Evaluation
from cpfl.runs import files, records
from cpfl.runs.recorder import RunRecorder
from cpfl.task.task import Task


class Evaluations:
    """The evaluations of one run."""

    def __init__(self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device) -> None:
        self._sessions, self._notify = sessions, run.callback.on_message
        self._stopping = task.experiment.stopping
        self._evaluator = EVALUATORS[self._stopping.metric](task, task.experiment.distillation, device)
        public = self._stopping.metric == "public-agreement"
        self._metric = "agreement" if public else task.data.objective.metric
        self._path, self._identity = run.folder.evaluations(), run.folder.identity
        records.repair(self._path)
        try:
            self.done = [Evaluation(**line) for line in records.read_sealed(self._path, self._identity)]
        except TypeError:  # valid JSON of a foreign shape
            raise DamagedError(f"{self._path} is damaged: a line is not that of an evaluation") from None
        if self._stopping.max_cpu_hours:
            self._share_first_phase(task)
        for session in sessions:
            if session.phases > len(self.done):
                raise DamagedError(f"{self._path} is damaged: it lacks evaluations of cohort {session.cohort}")

    def _share_first_phase(self, task: Task) -> None:
        """Share the limit for the first phase, by what devices and data say of a round."""
        sizes = task.data.clients.training_sizes
        expected = round_cpu_seconds(task.experiment.federation, task.fleet, sizes, task.cohorts)
        limit, price = self._stopping.max_cpu_hours * 3600, self._evaluator.cost().cpu_seconds
        budgets = stopping.share_budget(limit, price, self._stopping.eval_interval, [0.0] * len(expected), expected)
        for session, seconds in zip(self._sessions, budgets, strict=True):
            if not session.phases:
                session.cpu_budget = seconds

    def decide(self, waiting: Sequence[Session]) -> str:
        """Evaluate, if the limits allow it; else the limit that ends all."""
        cost = self._evaluator.cost()
        ends = max(session.clock for session in self._sessions) + cost.seconds
        if self._stopping.max_hours and ends > self._stopping.max_hours * 3600 + ROUNDING:
            return "hours"
        if self._left(cost) < -ROUNDING:
            return "cpu hours"
        self._evaluate(waiting, cost, ends)
        return ""

    def _left(self, cost: Cost) -> float:
        """The CPU seconds that the limit leaves after this cost."""
        limit = self._stopping.max_cpu_hours * 3600 or math.inf
        return limit - math.fsum(session.cpu_seconds for session in self._sessions) - cost.cpu_seconds

    def _evaluate(self, waiting: Sequence[Session], cost: Cost, ends: float) -> None:
        accuracy, loss = self._evaluator.evaluate([session.teacher() for session in self._sessions])
        spent = (sum(session.cpu_seconds for session in self._sessions) + cost.cpu_seconds) / 3600
        points = [*((one.cpu_hours, one.accuracy) for one in self.done), (spent, accuracy)]
        stop = stopping.converged(points, self._stopping.min_gain, self._stopping.eval_window)
        evaluation = Evaluation(
            phase=len(points),
            round=len(points) * self._stopping.eval_interval,
            cohorts=[session.cohort for session in waiting],
            cpu_budgets=self._budgets(waiting, cost),
            clock=ends,
            **vars(cost),
            cpu_hours=spent,
            accuracy=accuracy,
            loss=loss,
            gain_per_doubling=stopping.gain_per_doubling(points, self._stopping.eval_window),
            decision="stop" if stop else "continue",
            global_bytes=self._evaluator.global_bytes,
        )
        # It decides what follows.
        records.append(self._path, records.seal(self._path, vars(evaluation), self._identity))
        files.sync(self._path)  # later rounds depend on it
        files.sync(self._path.parent)
        self.done.append(evaluation)
        gain = evaluation.gain_per_doubling
        rising = "" if gain is None else f", {gain:+.1f} points for twice the CPU hours"
        scored = f"{self._metric} {accuracy:.2f} %{rising}"
        self._notify(f"evaluated after {evaluation.round} rounds: {scored}: {evaluation.decision}")

    def _budgets(self, waiting: Sequence[Session], cost: Cost) -> list[float]:
        """What is left of the limit, shared by the mean cost of each cohort's rounds: participants differ."""
        if not self._stopping.max_cpu_hours:
            return []
        prices = self._prices([session.cohort for session in waiting], cost.cpu_seconds)
        spent = [session.cpu_seconds + prices[session.cohort] for session in waiting]
        paid = [0.0] * len(self._sessions)  # for earlier evaluations, by cohort
        for evaluation in self.done:
            for cohort, price in self._prices(evaluation.cohorts, evaluation.cpu_seconds).items():
                paid[cohort] += price
        costs = [(session.cpu_seconds - paid[session.cohort]) / session.round for session in waiting]
        return stopping.share_budget(self._left(cost), cost.cpu_seconds, self._stopping.eval_interval, spent, costs)

    def _prices(self, cohorts: Sequence[int], cpu_seconds: float) -> dict[int, float]:
        """The part of an evaluation's CPU seconds that each cohort pays which waited for it: the same a client."""
        sizes = {cohort: len(self._sessions[cohort].clients) for cohort in cohorts}
        each = cpu_seconds / sum(sizes.values())
        return {cohort: each * size for cohort, size in sizes.items()}

    def apply(self, session: Session, closed: ClosedRound) -> ClosedRound:
        """What the next evaluation means for a cohort that waits: the same now as after any kill."""
        evaluation = self.done[session.phases]
        if evaluation.decision == "stop":
            return session.stop(closed, "joint", evaluation.clock)
        paid = self._prices(evaluation.cohorts, evaluation.cpu_seconds)[session.cohort]
        budgets = dict(zip(evaluation.cohorts, evaluation.cpu_budgets, strict=False))
        return session.continue_training(closed, evaluation.clock, paid, budgets.get(session.cohort, math.inf))
