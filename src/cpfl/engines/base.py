"""The contract between sessions and whoever does their work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cpfl.federation.session import Closed, Session

OnRound = Callable[[Session, Closed], None]
"""Called after every closed round, before the session opens another."""


class Engine(Protocol):
    """Drives sessions until each has stopped or waits to be judged, with no barrier between cohorts."""

    name: str

    def federate(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds that the sessions open."""
