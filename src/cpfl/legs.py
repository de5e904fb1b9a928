"""Cohorts that train in legs: after each they wait for each other, are judged together, and all go on or stop.

What a judgement says is on disk before any cohort acts on it, and the last round of a leg is written down only then, so
that its record can say whether the cohort stopped. A run that was killed makes a judgement that is not there again, and
cohorts that fall back behind one that is there hear the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

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
        self._ended: dict[int, Closed] = {}  # the last round of a leg, of the cohorts that wait

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
        able = payers(waiting, cost)
        if self._stopping.hours and over > self._stopping.hours * 3600 + ROUNDING:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "hours"))
        elif not able:
            for session in waiting:
                self._finish(session, session.stop(self._ended[session.cohort], "cpu hours"))
        else:
            judgement = self._judgement(able, cost, over)
            write(self._path, judgement)
            self._done.append(judgement)
            self._note(sentence(judgement))
            for session in waiting:
                self._tell(session, judgement)

    def _judgement(self, able: list[Session], cost: Cost, over: float) -> Judgement:
        seen = self._judge.look([session.teacher() for session in self._sessions])
        spent = (sum(session.cpu_seconds for session in self._sessions) + cost.cpu_seconds) / 3600
        points = [*((one.cpu_hours, one.value) for one in self._done), (spent, seen.value)]
        stop = joint.enough(points, self._stopping.gain, self._stopping.legs)
        return Judgement(
            leg=len(points),
            round=len(points) * self._stopping.every,
            cohorts=[session.cohort for session in able],
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

    def _tell(self, session: Session, judgement: Judgement) -> None:
        """What a judgement means for a cohort that waits: the same now as after any kill."""
        closed = self._ended[session.cohort]
        if session.cohort not in judgement.cohorts:
            closed = session.stop(closed, "cpu hours")
        elif judgement.decision == "stop":
            closed = session.stop(closed, "joint", judgement.clock)
        else:
            paying = [self._sessions[cohort] for cohort in judgement.cohorts]
            closed = session.go_on(closed, judgement.clock, part(session, paying, judgement.cpu_seconds))
        self._finish(session, closed)

    def _finish(self, session: Session, closed: Closed) -> None:
        del self._ended[session.cohort]
        self._on_round(session, closed)


def part(session: Session, paying: Sequence[Session], cpu_seconds: float) -> float:
    """What a cohort has to pay of a judgement: those that may go on share it, by their clients."""
    return cpu_seconds * len(session.clients) / sum(len(other.clients) for other in paying)


def payers(waiting: Sequence[Session], cost: Cost) -> list[Session]:
    """The cohorts whose CPU hours allow for a judgement, if they alone pay for it."""
    able = list(waiting)
    while poor := [session for session in able if not session.can_pay(part(session, able, cost.cpu_seconds))]:
        able = [session for session in able if session not in poor]
    return able


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
