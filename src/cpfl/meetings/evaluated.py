"""The stopping rule `joint` at meetings: the merged model is evaluated before any cohort continues from it.

First comes the line of the evaluation, then the meeting. If all are to stop, no meeting follows: the cohorts' own
models, of which the merged one was made, are the teachers. A run that was killed in between merges the same models
again, without another evaluation.
"""

from collections.abc import Sequence

import torch

from cpfl.distillation.evaluation import evaluates_merged
from cpfl.federation.session import ClosedRound, Session
from cpfl.meetings.evaluations import Evaluations
from cpfl.meetings.meetings import Meetings
from cpfl.runs.recorder import RunRecorder
from cpfl.task.task import Task


class EvaluatedMeetings:
    """The evaluations and meetings of one run."""

    def __init__(self, task: Task, sessions: Sequence[Session], run: RunRecorder, device: torch.device) -> None:
        self._sessions, self._merged = sessions, evaluates_merged(task)
        self._meetings = Meetings(task, sessions, run, device)
        self._evaluations = Evaluations(task, sessions, run, device)

    def decided(self, session: Session) -> bool:
        """Whether all stop or meet, as far as a cohort that waits is concerned."""
        if not self._evaluations.decided(session):
            return False
        return self._meetings.decided(session) or self._evaluations.done[session.phases].decision == "stop"

    def decide(self, waiting: Sequence[Session]) -> str:
        """Merge, evaluate what was merged, and hold the meeting if training is to continue; else the limit that ends
        all."""
        merged = self._meetings.merge()
        if not self._evaluations.decided(waiting[0]):
            models = [merged.model] if self._merged else [session.model for session in self._sessions]
            if reason := self._evaluations.evaluate(waiting, models, self._meetings.moment(waiting)):
                return reason
        evaluation = self._evaluations.done[waiting[0].phases]
        if evaluation.decision == "continue":
            self._meetings.hold(waiting, merged, evaluation.clock)
        return ""

    def apply(self, session: Session, closed: ClosedRound) -> ClosedRound:
        """What the next evaluation and meeting mean for a cohort that waits: the same now as after any kill."""
        evaluation = self._evaluations.done[session.phases]
        if evaluation.decision == "stop":
            return session.stop(closed, "joint", evaluation.clock)
        return self._meetings.apply(session, closed, self._evaluations.paid(evaluation, session.cohort))
