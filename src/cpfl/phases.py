"""Phases: cohorts train, then wait for each other, and are evaluated together (stopping rule joint) or meet, or both.

What is decided then is on disk before any cohort acts on it, and the last round of a phase is recorded only then, so
that its record can say whether the cohort stopped. A run that was killed repeats a decision that is missing; cohorts
that resume before one that is there follow it. Cohorts that meet one by one do not wait for each other: in a
simulation they only pause until no other can come before them, in a real fleet not at all.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from cpfl.engines.base import Engine, OnRound
from cpfl.federation.session import ClosedRound, Session
from cpfl.meetings.asynchronous import AsynchronousMeetings
from cpfl.meetings.evaluated import EvaluatedMeetings
from cpfl.meetings.evaluations import Evaluations
from cpfl.meetings.meetings import Meetings
from cpfl.runs.recorder import RunRecorder
from cpfl.settings.choices import MEETING_RULES
from cpfl.task.task import Task


class Decisions(Protocol):
    """What is decided at the ends of phases."""

    def decided(self, session: Session) -> bool:
        """Whether what follows for this cohort, which waits, is on disk."""

    def decide(self, waiting: Sequence[Session]) -> str:
        """Decide what follows for these cohorts, and write it; or the reason why they stop without a decision."""

    def apply(self, session: Session, closed: ClosedRound) -> ClosedRound:
        """What the next decision means for a cohort that waits: the same now as after any kill."""


class Phases:
    """Trains the cohorts of a run phase by phase; `on_round` is called when a round's record is final."""

    def __init__(
        self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device, on_round: OnRound
    ) -> None:
        joint, meets = task.experiment.stopping.rule == "joint", task.experiment.meets
        kind: Callable[..., Decisions] = Meetings if meets else Evaluations
        if joint and meets:
            kind = EvaluatedMeetings
        elif meets and not MEETING_RULES.find(task.experiment.meetings.rule).together:
            kind = AsynchronousMeetings
        self._apart, self._at_once = kind is AsynchronousMeetings, False
        self._sessions, self._on_round = sessions, on_round
        self._decisions = kind(task, sessions, run, device)
        self._ended: dict[int, ClosedRound] = {}  # the last round of a phase, of the cohorts that wait

    def train(self, engine: Engine) -> None:
        """Until every session has stopped."""
        self._at_once = self._apart and engine.real_time
        while any(not session.stopped for session in self._sessions):
            engine.train_cohorts(self._sessions, self._close)
            waiting = [session for session in self._sessions if session.waiting]
            open_ = waiting and not any(map(self._decisions.decided, waiting))
            if open_ and (reason := self._decisions.decide(waiting)):
                for session in waiting:
                    self._on_round(session, session.stop(self._ended.pop(session.cohort), reason))
                continue
            for session in filter(self._decisions.decided, waiting):
                self._on_round(session, self._decisions.apply(session, self._ended.pop(session.cohort)))

    def _close(self, session: Session, closed: ClosedRound) -> None:
        if not session.waiting:
            self._on_round(session, closed)
        elif self._at_once:
            if not self._decisions.decided(session):
                self._decisions.decide([session])
            self._on_round(session, self._decisions.apply(session, closed))
        else:
            self._ended[session.cohort] = closed
