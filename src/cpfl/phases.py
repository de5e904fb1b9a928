"""The stopping rule `joint`: cohorts train in phases, after which the ensemble of all of them is evaluated.

At the end of a phase the cohorts wait for each other, then all continue or all stop. An evaluation is on disk before
any cohort acts on it, and the last round of a phase is recorded only then, so that its record can say whether the
cohort stopped. A run that was killed repeats an evaluation that is missing; cohorts that resume before one that is
there follow it.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from cpfl.distillation.evaluation import EVALUATORS
from cpfl.engines.base import Engine, OnRound
from cpfl.errors import DamagedError
from cpfl.federation import accounting, stopping
from cpfl.federation.session import ClosedRound, Session
from cpfl.federation.stopping import ROUNDING, Cost, Evaluation
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.recorder import RunRecorder
from cpfl.task.task import Task


def train(
    task: Task, sessions: Sequence[Session], engine: Engine, run: RunRecorder, device: torch.device, on_round: OnRound
) -> None:
    """Phase after phase until every session has stopped; `on_round` is called when a round's record is final."""
    Phases(task, sessions, run, device, on_round).train(engine)


class Phases:
    """One run from evaluation to evaluation."""

    def __init__(
        self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device, on_round: OnRound
    ) -> None:
        self._sessions, self._on_round, self._notify = sessions, on_round, run.callback.on_message
        self._stopping = task.experiment.stopping
        self._evaluator = EVALUATORS[self._stopping.metric](task, task.experiment.distillation, device)
        self._path, self._done = run.folder.evaluations(), read(run.folder)
        self._paid = [0.0] * len(sessions)  # CPU seconds of evaluations, by cohort
        for evaluation in self._done:
            self._pay(evaluation)
        if self._stopping.max_cpu_hours:
            self._share_first_phase(task)
        self._ended: dict[int, ClosedRound] = {}  # the last round of a phase, of the cohorts that wait

    def _share_first_phase(self, task: Task) -> None:
        """Share the limit for the first phase, by what devices and data say of a round."""
        expected = accounting.round_cpu_seconds(
            task.experiment.federation, task.fleet, task.data.clients.training_sizes, task.cohorts
        )
        limit, price = self._stopping.max_cpu_hours * 3600, self._evaluator.cost().cpu_seconds
        budgets = stopping.share_budget(limit, price, self._stopping.eval_interval, [0.0] * len(expected), expected)
        for session, seconds in zip(self._sessions, budgets, strict=True):
            if not session.phases:
                session.cpu_budget = seconds

    def train(self, engine: Engine) -> None:
        """Until every session has stopped."""
        for session in self._sessions:
            if session.phases > len(self._done):
                raise DamagedError(f"{self._path} is damaged: it lacks evaluations of cohort {session.cohort}")
        while any(not session.stopped for session in self._sessions):
            engine.train_cohorts(self._sessions, self._close)
            waiting = [session for session in self._sessions if session.waiting]
            behind = [session for session in waiting if session.phases < len(self._done)]
            if behind:
                for session in behind:
                    self._apply(session, self._done[session.phases])
            elif waiting:
                self._end_phase(waiting)

    def _close(self, session: Session, closed: ClosedRound) -> None:
        if session.waiting:
            self._ended[session.cohort] = closed
        else:
            self._on_round(session, closed)

    def _end_phase(self, waiting: list[Session]) -> None:
        """Evaluate, if the limits allow it."""
        cost = self._evaluator.cost()
        ends = max(session.clock for session in self._sessions) + cost.seconds
        if self._stopping.max_hours and ends > self._stopping.max_hours * 3600 + ROUNDING:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "hours"))
        elif self._left(cost) < -ROUNDING:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "cpu hours"))
        else:
            evaluation = self._evaluate(waiting, cost, ends)
            write(self._path, evaluation)
            self._done.append(evaluation)
            self._pay(evaluation)
            self._notify(sentence(evaluation))
            for session in waiting:
                self._apply(session, evaluation)

    def _left(self, cost: Cost) -> float:
        """The CPU seconds that the limit leaves after this cost."""
        limit = self._stopping.max_cpu_hours * 3600 or math.inf
        return limit - math.fsum(session.cpu_seconds for session in self._sessions) - cost.cpu_seconds

    def _evaluate(self, waiting: list[Session], cost: Cost, ends: float) -> Evaluation:
        score = self._evaluator.evaluate([session.teacher() for session in self._sessions])
        spent = (sum(session.cpu_seconds for session in self._sessions) + cost.cpu_seconds) / 3600
        points = [*((one.cpu_hours, one.accuracy) for one in self._done), (spent, score.accuracy)]
        stop = stopping.converged(points, self._stopping.min_gain, self._stopping.eval_window)
        return Evaluation(
            phase=len(points),
            round=len(points) * self._stopping.eval_interval,
            cohorts=[session.cohort for session in waiting],
            cpu_budgets=self._budgets(waiting, cost),
            clock=ends,
            seconds=cost.seconds,
            cpu_seconds=cost.cpu_seconds,
            bytes=cost.bytes,
            cpu_hours=spent,
            accuracy=score.accuracy,
            loss=score.loss,
            gain_per_doubling=stopping.gain_per_doubling(points, self._stopping.eval_window),
            decision="stop" if stop else "continue",
        )

    def _budgets(self, waiting: list[Session], cost: Cost) -> list[float]:
        """What is left of the limit, shared by the mean cost of each cohort's rounds: participants differ."""
        if not self._stopping.max_cpu_hours:
            return []
        each = _price_per_client(waiting, cost.cpu_seconds)
        spent = [session.cpu_seconds + each * len(session.clients) for session in waiting]
        costs = [(session.cpu_seconds - self._paid[session.cohort]) / session.round for session in waiting]
        return stopping.share_budget(self._left(cost), cost.cpu_seconds, self._stopping.eval_interval, spent, costs)

    def _pay(self, evaluation: Evaluation) -> None:
        paying = [self._sessions[cohort] for cohort in evaluation.cohorts]
        each = _price_per_client(paying, evaluation.cpu_seconds)
        for session in paying:
            self._paid[session.cohort] += each * len(session.clients)

    def _apply(self, session: Session, evaluation: Evaluation) -> None:
        """What an evaluation means for a cohort that waits: the same now as after any kill."""
        closed = self._ended[session.cohort]
        if evaluation.decision == "stop":
            closed = session.stop(closed, "joint", evaluation.clock)
        else:
            paying = [self._sessions[cohort] for cohort in evaluation.cohorts]
            paid = _price_per_client(paying, evaluation.cpu_seconds) * len(session.clients)
            budgets = dict(zip(evaluation.cohorts, evaluation.cpu_budgets, strict=False))
            budget = budgets.get(session.cohort, math.inf)
            closed = session.continue_training(closed, evaluation.clock, paid, budget)
        self._finish(session, closed)

    def _finish(self, session: Session, closed: ClosedRound) -> None:
        del self._ended[session.cohort]
        self._on_round(session, closed)


def _price_per_client(paying: Sequence[Session], cpu_seconds: float) -> float:
    """What each client of the cohorts that waited for an evaluation pays of it."""
    return cpu_seconds / sum(len(session.clients) for session in paying)


def sentence(evaluation: Evaluation) -> str:
    """One line for a person."""
    gain = evaluation.gain_per_doubling
    rising = "" if gain is None else f", {gain:+.1f} points for twice the CPU hours"
    return f"evaluated after {evaluation.round} rounds: {evaluation.accuracy:.2f} %{rising}: {evaluation.decision}"


def read(folder: RunFolder) -> list[Evaluation]:
    """The evaluations so far; a line that a crash cut short is dropped."""
    records.repair(folder.evaluations())
    try:
        return [Evaluation(**line) for line in records.read(folder.evaluations())]
    except TypeError:  # valid JSON of a foreign shape
        raise DamagedError(f"{folder.evaluations()} is damaged: a line is not that of an evaluation") from None


def write(path: Path, evaluation: Evaluation) -> None:
    """Durably: later rounds depend on it."""
    records.append(path, vars(evaluation))
    records.sync(path)
    files.sync_folder(path.parent)
