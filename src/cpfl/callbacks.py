"""Callbacks follow a run: a terminal view, a tracker, your own code. Nothing here trains or draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from cpfl.distillation.student import EpochRecord
    from cpfl.federation.session import ClosedRound, Session
    from cpfl.runs.folder import RunFolder
    from cpfl.task.task import Task


class Callback:
    """Base class of everything that follows a run; override the methods that you need."""

    def on_task(self, task: Task, folder: RunFolder, device: torch.device) -> None:
        """The task is built and its run folder is there; `device` is where models are evaluated."""

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Training starts, or resumes from the state of these sessions."""

    def on_round(self, session: Session, closed: ClosedRound) -> bool | None:
        """A cohort has closed a round. Return True to stop the run: every cohort ends with its next closed round, and
        the models of that moment are distilled."""

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Under the stopping rule joint all cohorts were evaluated: a line of evaluations.jsonl."""

    def on_meeting(self, meeting: Mapping[str, Any]) -> None:
        """Cohorts have met, and continue from the merged model: a line of meetings.jsonl."""

    def on_epoch(self, record: EpochRecord) -> None:
        """The student has completed an epoch over the public set."""

    def on_message(self, text: str) -> None:
        """The run has a message for the user."""

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """The workers of a cluster report their load."""

    def on_end(self, summary: Mapping[str, Any] | None) -> None:
        """The run has ended; `summary` is None if it was interrupted."""


class CallbackList(Callback):
    """Several callbacks as one: every call goes to all of them, and each of them can stop the run."""

    def __init__(self, *callbacks: Callback) -> None:
        for name in [name for name in vars(Callback) if name.startswith("on_")]:
            setattr(self, name, partial(_call_all, [getattr(callback, name) for callback in callbacks]))


def _call_all(methods: Sequence[Callable[..., bool | None]], *arguments: Any) -> bool:
    """Whether one of them returns True; all of them are called before."""
    answers = [method(*arguments) for method in methods]
    return any(answers)
