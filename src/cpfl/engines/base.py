"""The contract between sessions and the engine that trains them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cpfl.federation.session import ClosedRound, Session
from cpfl.task.task import Task

OnRound = Callable[[Session, ClosedRound], None]
"""Called after every closed round, before the session opens another."""


class Engine:
    """Does the rounds that sessions open, with no barrier between cohorts. Subclass it and write `train_cohorts`."""

    name: str
    real_time = False  # True: clocks of cohorts measure real time
    device: str = "cpu"  # the kind of device that cohorts train on; the driver may have another
    on_event: Callable[..., None] = staticmethod(lambda *args, **facts: None)
    """Set by the caller: (event, **facts) for the run's log, such as the death of a worker."""
    on_load: Callable[[dict[str, Any]], None] = staticmethod(lambda load: None)
    """Set by the caller: what every worker does at the moment, about once a second."""

    def prepare(self, task: Task, device: torch.device) -> None:
        """An engine that the user made learns what it is to train on, before the first round."""

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do rounds until every session has stopped or waits for an evaluation."""
        raise NotImplementedError

    def pause(self) -> None:
        """Called between two steps of the student: an engine that several runs share lets the others work."""

    def close(self) -> None:
        """Release what the engine holds outside this process."""

    @property
    def width(self) -> int:
        """Pieces of the distillation's work that workers do at once; 0: there are no such workers."""
        return 0

    def share(self, items: Iterable[Any]) -> list[Any]:
        """Store items where every worker can read them, one after the other."""
        raise NotImplementedError

    def spread(self, job: Callable[..., Any], shared: list[Any], pieces: Sequence[Any]) -> list[Any]:
        """The results of the job for each piece, in their order."""
        raise NotImplementedError
