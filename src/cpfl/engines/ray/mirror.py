"""A worker's copy of a session: it tells the driver of every round, and can be made to end between two."""

from __future__ import annotations

from collections.abc import Callable

from cpfl.engines.ray import letters
from cpfl.engines.ray.letters import Letter
from cpfl.federation.session import Closed, Outcome, Session

GIVEN_UP = "goes on elsewhere"


class Mirror(Session):
    """Closes rounds as the driver's session will when it hears of them."""

    post: Callable[[Letter], None]
    complete = False  # the engine tells of models when the device has made them, not before
    leaving = False  # asked to end with the round that is open
    returning = False  # and to go on with others on the same worker
    gone = False  # the driver knows that it has left

    def close_round(self, outcome: Outcome) -> Closed:
        """Tell the driver; one that is asked to leave stops, which every engine heeds."""
        closed = super().close_round(outcome)
        self.post(letters.done(self.cohort, self.round, outcome, self.complete))
        if self.leaving and not self.idle:
            self.stopped = GIVEN_UP
            self._tell()
        return closed

    def settle(self) -> None:
        """After the engine has let go of it: go on if it was to return, else be sure that the driver knows."""
        if self.stopped == GIVEN_UP and self.returning:
            self.stopped, self.leaving, self.returning = "", False, False
        elif self.stopped == GIVEN_UP:
            self._tell()

    def _tell(self) -> None:
        if not self.returning and not self.gone:
            self.gone = True
            self.post(letters.Left(self.cohort))
