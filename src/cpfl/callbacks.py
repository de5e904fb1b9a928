"""Callbacks follow a run: a terminal view, a tracker, your own code. Nothing here trains or draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpfl.distillation.student import EpochRecord
    from cpfl.federation.session import ClosedRound, Session


class Callback:
    """Base class of everything that follows a run; override the methods that you need."""

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Training starts, or resumes from the state of these sessions."""

    def on_round(self, session: Session, closed: ClosedRound) -> bool | None:
        """A cohort has closed a round. Return True to stop the run: every cohort ends with its next closed round, and
        the models of that moment are distilled."""

    def on_epoch(self, record: EpochRecord) -> None:
        """The student has completed an epoch over the public set."""

    def on_message(self, text: str) -> None:
        """The run has a message for the user."""

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """The workers of a cluster report their load."""

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """The run has ended; `summary` is None if it was interrupted."""


class CallbackList(Callback):
    """Several callbacks as one."""

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks

    def on_start(self, sessions: Sequence[Session]) -> None:
        for callback in self._callbacks:
            callback.on_start(sessions)

    def on_round(self, session: Session, closed: ClosedRound) -> bool | None:
        answers = [callback.on_round(session, closed) for callback in self._callbacks]  # all of them see the round
        return any(answers)

    def on_epoch(self, record: EpochRecord) -> None:
        for callback in self._callbacks:
            callback.on_epoch(record)

    def on_message(self, text: str) -> None:
        for callback in self._callbacks:
            callback.on_message(text)

    def on_workers(self, load: Mapping[str, Any]) -> None:
        for callback in self._callbacks:
            callback.on_workers(load)

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        for callback in self._callbacks:
            callback.on_end(summary)
