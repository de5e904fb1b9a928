"""Cohorts that train in legs: after each they wait for each other, are judged together, and all go on or stop.

What a judgement says is on disk before any cohort acts on it, and the last round of a leg is written down only then, so
that its record can say whether the cohort stopped. A run that was killed makes a judgement that is not there again, and
cohorts that fall back behind one that is there hear the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cpfl import planning
from cpfl.distillation.judges import JUDGES, Judge
from cpfl.engines.base import Engine, OnRound
from cpfl.errors import DamagedError
from cpfl.experiment import Stopping
from cpfl.federation import joint
from cpfl.federation.joint import Cost, Judgement
from cpfl.federation.session import Closed, Session
from cpfl.federation.stopping import ROUNDING
from cpfl.problem import Problem
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder


def federate(
    problem: Problem,
    sessions: Sequence[Session],
    folder: RunFolder,
    engine: Engine,
    device: torch.device,
    on_round: OnRound,
    note: Callable[[str], None],
) -> None:
    """Leg after leg until every session has stopped; rounds are told of when it is known whether they were the last."""
    Legs(problem, sessions, folder, device, on_round, note).work(engine)


class Legs:
    """The way of one federation from judgement to judgement."""

    def __init__(
        self,
        problem: Problem,
        sessions: Sequence[Session],
        folder: RunFolder,
        device: torch.device,
        on_round: OnRound,
        note: Callable[[str], None],
    ) -> None:
        self._sessions, self._on_round, self._note = sessions, on_round, note
        self._stopping: Stopping = problem.experiment.stopping
        self._judge: Judge = JUDGES[self._stopping.judge](problem, problem.experiment.distillation, device)
        self._path = folder.judgements()
        self._done = read(folder)
        self._paid = [0.0] * len(sessions)  # CPU seconds of judgements, by cohort
        for judgement in self._done:
            self._pay(judgement)
        if self._stopping.cpu_hours:
            self._begin(problem)
        self._ended: dict[int, Closed] = {}  # the last round of a leg, of the cohorts that wait

    def _begin(self, problem: Problem) -> None:
        """Share out the limit for the first leg, by what devices and data say of a round."""
        foreseen = planning.round_cpu_seconds(problem.experiment, problem.data, problem.fleet, problem.plan)
        limit, price = self._stopping.cpu_hours * 3600, self._judge.cost().cpu_seconds
        allowed = joint.shared_out(limit, price, self._stopping.every, [0.0] * len(foreseen), foreseen)
        for session, seconds in zip(self._sessions, allowed, strict=True):
            if not session.legs:
                session.allowed = seconds

    def work(self, engine: Engine) -> None:
        """Until every session has stopped."""
        for session in self._sessions:
            if session.legs > len(self._done):
                raise DamagedError(f"{self._path} is damaged: it lacks judgements that cohort {session.cohort} heard")
        while any(not session.stopped for session in self._sessions):
            engine.federate(self._sessions, self._close)
            waiting = [session for session in self._sessions if session.paused]
            behind = [session for session in waiting if session.legs < len(self._done)]
            if behind:
                for session in behind:
                    self._tell(session, self._done[session.legs])
            elif waiting:
                self._end_leg(waiting)

    def _close(self, session: Session, closed: Closed) -> None:
        if session.paused:
            self._ended[session.cohort] = closed
        else:
            self._on_round(session, closed)

    def _end_leg(self, waiting: list[Session]) -> None:
        """Judge, if the limits leave room for it."""
        cost = self._judge.cost()
        over = max(session.clock for session in self._sessions) + cost.seconds
        if self._stopping.hours and over > self._stopping.hours * 3600 + ROUNDING:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "hours"))
        elif self._left(cost) < -ROUNDING:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "cpu hours"))
        else:
            judgement = self._judgement(waiting, cost, over)
            write(self._path, judgement)
            self._done.append(judgement)
            self._pay(judgement)
            self._note(sentence(judgement))
            for session in waiting:
                self._tell(session, judgement)

    def _left(self, cost: Cost) -> float:
        """The CPU seconds that the limit leaves when so much has been paid."""
        limit = self._stopping.cpu_hours * 3600 or math.inf
        return limit - math.fsum(session.cpu_seconds for session in self._sessions) - cost.cpu_seconds

    def _judgement(self, waiting: list[Session], cost: Cost, over: float) -> Judgement:
        seen = self._judge.look([session.teacher() for session in self._sessions])
        spent = (sum(session.cpu_seconds for session in self._sessions) + cost.cpu_seconds) / 3600
        points = [*((one.cpu_hours, one.value) for one in self._done), (spent, seen.value)]
        stop = joint.enough(points, self._stopping.gain, self._stopping.legs)
        return Judgement(
            leg=len(points),
            round=len(points) * self._stopping.every,
            cohorts=[session.cohort for session in waiting],
            allowed=self._allowed(waiting, cost),
            clock=over,
            seconds=cost.seconds,
            cpu_seconds=cost.cpu_seconds,
            bytes=cost.bytes,
            cpu_hours=spent,
            value=seen.value,
            loss=seen.loss,
            slope=joint.slope(points, self._stopping.legs),
            decision="stop" if stop else "on",
        )

    def _allowed(self, waiting: list[Session], cost: Cost) -> list[float]:
        """What is left of the limit, shared out by what rounds have cost on average: who took part differs."""
        if not self._stopping.cpu_hours:
            return []
        each = share(waiting, cost.cpu_seconds)
        spent = [session.cpu_seconds + each * len(session.clients) for session in waiting]
        costs = [(session.cpu_seconds - self._paid[session.cohort]) / session.round for session in waiting]
        return joint.shared_out(self._left(cost), cost.cpu_seconds, self._stopping.every, spent, costs)

    def _pay(self, judgement: Judgement) -> None:
        paying = [self._sessions[cohort] for cohort in judgement.cohorts]
        each = share(paying, judgement.cpu_seconds)
        for session in paying:
            self._paid[session.cohort] += each * len(session.clients)

    def _tell(self, session: Session, judgement: Judgement) -> None:
        """What a judgement means for a cohort that waits: the same now as after any kill."""
        closed = self._ended[session.cohort]
        if judgement.decision == "stop":
            closed = session.stop(closed, "joint", judgement.clock)
        else:
            each = share([self._sessions[cohort] for cohort in judgement.cohorts], judgement.cpu_seconds)
            paid = each * len(session.clients)
            allowed = dict(zip(judgement.cohorts, judgement.allowed, strict=False)).get(session.cohort, math.inf)
            closed = session.go_on(closed, judgement.clock, paid, allowed)
        self._finish(session, closed)

    def _finish(self, session: Session, closed: Closed) -> None:
        del self._ended[session.cohort]
        self._on_round(session, closed)


def share(paying: Sequence[Session], cpu_seconds: float) -> float:
    """What a cohort has to pay of a judgement for each of its clients: those that waited for it share it."""
    return cpu_seconds / sum(len(session.clients) for session in paying)


def sentence(judgement: Judgement) -> str:
    """For a person."""
    rising = "" if judgement.slope is None else f", {judgement.slope:+.1f} for twice the work"
    return f"judged after {judgement.round} rounds: {judgement.value:.2f} %{rising}: {judgement.decision}"


def read(folder: RunFolder) -> list[Judgement]:
    """What was judged so far; a line that a crash cut is forgotten."""
    records.mend(folder.judgements())
    try:
        return [Judgement(**line) for line in records.read(folder.judgements())]
    except TypeError:  # valid JSON of a foreign shape
        raise DamagedError(f"{folder.judgements()} is damaged: a line is not that of a judgement") from None


def write(path: Path, judgement: Judgement) -> None:
    """To stay: rounds after it count on it."""
    records.append(path, judgement.as_dict())
    records.sync(path)
    files.sync_folder(path.parent)
