"""Meetings without waiting: a cohort meets the global model when it is ready, and continues at once.

In a simulation meetings are held in the order of virtual time: that of a cohort is held when no other cohort can come
before. So the outcome does not depend on the engine. In a real fleet they are held as cohorts come.
"""

import math
from collections.abc import Sequence

from cpfl.federation.session import Session
from cpfl.meetings.meetings import Meeting, Meetings
from cpfl.runs import files


class AsynchronousMeetings(Meetings):
    """The meetings of one run; a line of meetings.jsonl is a meeting of one cohort with the global model."""

    def following(self, session: Session) -> Meeting | None:
        """The meeting of this cohort after the last one that it has followed, if it was held."""
        return next((one for one in self.done[session.phases :] if session.cohort in one.cohorts), None)

    def decide(self, waiting: Sequence[Session]) -> str:
        """Hold the meetings before which no cohort can come any more, in their order."""
        soonest = math.inf
        for session in sorted(waiting, key=lambda one: (one.clock, one.cohort)):
            if session.clock >= soonest:
                break
            soonest = min(soonest, session.soonest_meeting)
            self._meet(session)
        return ""

    def _meet(self, session: Session) -> None:
        """Merge the model of one cohort into the global one."""
        own = [one for one in self.done if session.cohort in one.cohorts]
        before = own[-1].meeting if own else 0
        work = session.samples - (own[-1].samples[0] if own else 0)
        began = files.on_host(self._task.layout().sent(self._read(before).model))
        brought = self._contribution(session, work, began, len(self.done) - before)
        self.hold([session], self._merged([brought]), session.clock)

    def _samples(self, waiting: Sequence[Session]) -> list[int]:
        return [session.samples for session in waiting]

    def _traffic(self, waiting: Sequence[Session]) -> int:
        """The cohort's model and the merged one; a cohort that has stopped comes no more."""
        return sum(session.meeting_bytes for session in waiting)
