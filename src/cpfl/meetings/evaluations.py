"""The stopping rule `joint`: at the end of every phase all cohorts are evaluated together.

The ensemble of their models is evaluated; at a meeting it is the merged model, one for every client instead of n. Then
all continue or all stop. Each evaluation is a line of evaluations.jsonl.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch

from cpfl.distillation.evaluation import evaluator
from cpfl.errors import DamagedError
from cpfl.federation import stopping
from cpfl.federation.messages import Cost
from cpfl.federation.selection.base import round_cpu_seconds
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING, Evaluation, Point, Share
from cpfl.models import State
from cpfl.runs import files, records
from cpfl.runs.recorder import RunRecorder
from cpfl.task.task import Task

LIMITED = {"cpu_seconds": "cpu hours", "bytes": "traffic"}  # what a cost may exceed, and the reason why all stop then


class Evaluations:
    """The evaluations of one run."""

    def __init__(self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device) -> None:
        self._sessions, self._callback, self._meets = sessions, run.callback, task.experiment.meets
        self._stopping = task.experiment.stopping
        self._evaluator = evaluator(task, device)
        public = self._stopping.metric == "public-agreement"
        self._metric = "agreement" if public else task.data.objective.metric
        limits = {"cpu_seconds": self._stopping.max_cpu_hours * 3600, "bytes": self._stopping.max_traffic_gb * 1e9}
        self._limits = {what: limit for what, limit in limits.items() if limit}
        self._path, self._identity = run.folder.evaluations(), run.folder.identity
        records.repair(self._path)
        try:
            self.done = [Evaluation(**line) for line in records.read_sealed(self._path, self._identity)]
        except TypeError:  # valid JSON of a foreign shape
            raise DamagedError(f"{self._path} is damaged: a line is not that of an evaluation") from None
        if self._stopping.max_cpu_hours and not self._meets:
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

    def decided(self, session: Session) -> bool:
        """Whether the evaluation that this cohort waits for is on disk."""
        return session.phases < len(self.done)

    def decide(self, waiting: Sequence[Session]) -> str:
        """Evaluate the ensemble, if the limits allow it; else the limit that ends all."""
        moment = max(session.clock for session in self._sessions)
        return self.evaluate(waiting, [session.teacher() for session in self._sessions], moment)

    def evaluate(self, waiting: Sequence[Session], models: Sequence[State], moment: float) -> str:
        """Evaluate these models at a virtual time, if the limits allow it; else the limit that ends all."""
        self._evaluator.cohorts = [session.clients for session in self._sessions]
        cost = self._evaluator.cost([session.cohort for session in waiting])
        ends = moment + cost.seconds
        if self._stopping.max_hours and ends > self._stopping.max_hours * 3600 + ROUNDING:
            return "hours"
        for what, reason in LIMITED.items():
            if self._left(what, cost) < -ROUNDING:
                return reason
        self._write(waiting, cost, ends, *self._evaluator.evaluate(models))
        return ""

    def _left(self, what: str, cost: Cost) -> float:
        """What a limit leaves after this cost, of CPU seconds or bytes."""
        spent = math.fsum(getattr(session, what) + _reserved(session, what) for session in self._sessions)
        return self._limits.get(what, math.inf) - spent - float(getattr(cost, what))

    def _write(self, waiting: Sequence[Session], cost: Cost, ends: float, accuracy: float, loss: float | None) -> None:
        spent = (sum(session.cpu_seconds for session in self._sessions) + cost.cpu_seconds) / 3600
        work = spent if self._stopping.gain_per == "cpu_hours" else ends / 3600
        points: list[Point] = [*((self._work(one), one.accuracy) for one in self.done), (work, accuracy)]
        stop = stopping.converged(points, self._stopping.min_gain, self._stopping.eval_window)
        evaluation = Evaluation(
            phase=len(points),
            round=max(session.round for session in waiting)
            if self._meets
            else len(points) * self._stopping.eval_interval,
            cohorts=[session.cohort for session in waiting],
            cpu_budgets=self._budgets("cpu_seconds", waiting, cost),
            byte_budgets=self._budgets("bytes", waiting, cost),
            clock=ends,
            **vars(cost),
            cpu_hours=spent,
            accuracy=accuracy,
            loss=loss,
            gain_per_doubling=stopping.gain_per_doubling(points, self._stopping.eval_window),
            decision="stop" if stop else "continue",
            global_bytes=self._evaluator.global_bytes([session.cohort for session in waiting]),
            rounds=[session.round for session in waiting] if self._meets else [],
        )
        # It decides what follows.
        records.append(self._path, records.seal(self._path, asdict(evaluation), self._identity))
        files.sync(self._path)  # later rounds depend on it
        files.sync(self._path.parent)
        self.done.append(evaluation)
        gain, per = evaluation.gain_per_doubling, self._stopping.gain_per.replace("cpu_", "CPU ")
        rising = "" if gain is None else f", {gain:+.1f} points for twice the {per}"
        when = f"at {ends / 3600:.2f} h" if self._meets else f"after {evaluation.round} rounds"
        self._callback.on_message(f"evaluated {when}: {self._metric} {accuracy:.2f} %{rising}: {evaluation.decision}")
        self._callback.on_evaluation(asdict(evaluation))

    def _work(self, evaluation: Evaluation) -> float:
        """What had been spent until an evaluation, of what the gain is counted per."""
        return evaluation.cpu_hours if self._stopping.gain_per == "cpu_hours" else evaluation.clock / 3600

    def _budgets(self, what: str, waiting: Sequence[Session], cost: Cost) -> list[float]:
        """What is left of a limit, shared by the mean cost of each cohort's rounds: participants differ. Cohorts that
        meet at times share it by the mean cost of their phases, since they do not do the same number of rounds."""
        if what not in self._limits:
            return []
        prices = self._prices([session.cohort for session in waiting], getattr(cost, what))
        spent = [getattr(session, what) + prices[session.cohort] for session in waiting]
        paid = [0.0] * len(self._sessions)  # for earlier evaluations, by cohort
        for evaluation in self.done:
            for cohort, price in self._prices(evaluation.cohorts, getattr(evaluation, what)).items():
                paid[cohort] += price
        costs = [
            (getattr(session, what) - paid[session.cohort]) / (len(self.done) + 1 if self._meets else session.round)
            for session in waiting
        ]
        phase = 1 if self._meets else self._stopping.eval_interval
        meeting = [session.meeting_bytes if what == "bytes" else 0 for session in waiting]  # that follows
        left = self._left(what, cost) - sum(meeting)
        budgets = stopping.share_budget(left, getattr(cost, what), phase, spent, costs)
        return [
            budget + now + _reserved(session, what)
            for budget, now, session in zip(budgets, meeting, waiting, strict=True)
        ]

    def _prices(self, cohorts: Sequence[int], whole: float) -> dict[int, float]:
        """The part of an evaluation's CPU seconds or bytes that each cohort pays which waited for it: the same a
        client."""
        sizes = {cohort: len(self._sessions[cohort].clients) for cohort in cohorts}
        each = whole / sum(sizes.values())
        return {cohort: each * size for cohort, size in sizes.items()}

    def paid(self, evaluation: Evaluation, cohort: int) -> Share:
        """What an evaluation costs a cohort that waited for it, and what the cohort may spend in all from then on."""
        prices = [
            self._prices(evaluation.cohorts, whole)[cohort] for whole in (evaluation.cpu_seconds, evaluation.bytes)
        ]
        budgets = [
            dict(zip(evaluation.cohorts, each, strict=False)).get(cohort, math.inf)
            for each in (evaluation.cpu_budgets, evaluation.byte_budgets)
        ]
        return Share(*prices, *budgets)

    def apply(self, session: Session, closed: ClosedRound) -> ClosedRound:
        """What the next evaluation means for a cohort that waits: the same now as after any kill."""
        evaluation = self.done[session.phases]
        if evaluation.decision == "stop":
            return session.stop(closed, "joint", evaluation.clock)
        return session.continue_training(closed, evaluation.clock, self.paid(evaluation, session.cohort))


def _reserved(session: Session, what: str) -> float:
    """What of a limit is kept back for the end of a cohort and its next meeting."""
    return session.reserved_bytes if what == "bytes" else 0
