"""An engine that several runs of a sweep share.

Every run has a `RunEngine`, which its own code uses as any engine: it waits there until what it asked for is done. It
is done when `SharedEngine.train` is called, together with what the other runs ask for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cpfl.engines.base import Engine, OnRound
from cpfl.federation import local_training
from cpfl.federation.session import Session
from cpfl.task.task import Task


def at_once(task: Task) -> float:
    """The clients of a task that can train at the same time: a round lasts as long as its longest client."""
    sizes, settings = task.data.clients.training_sizes, task.experiment.federation
    steps = [local_training.all_steps(settings, sizes[np.asarray(clients)]) for clients in task.cohorts]
    return sum(float(own.sum() / own.max()) for own in steps)


@dataclass
class Request:
    """What a run asks for while its code waits."""

    sessions: Sequence[Session]
    on_round: OnRound
    error: Exception | None = None  # why it could not be done
    refused: bool = False  # the run needs an engine of its own


def keep_drawing(wait: Callable[[], None]) -> None:
    """Wait while other students work; the random numbers of this one's dropout continue where they were."""
    drawn = torch.get_rng_state()
    wait()
    torch.set_rng_state(drawn)


class StudentEngine(Engine):
    """What a student that is distilled again sees of the others beside it; nothing is trained."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def pause(self) -> None:
        """Let the others work."""
        keep_drawing(self._wait)


class SharedEngine:
    """Trains what runs ask for."""

    name: str
    alternates = True  # a student's steps alternate with this engine's, so that none waits for the other to end

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def full(self, runs: Sequence["RunEngine"]) -> bool:
        """Whether these runs keep it busy."""
        raise NotImplementedError

    def train(self, waiting: Sequence["RunEngine"], steps: float) -> list["RunEngine"]:
        """Train what these runs wait for, until one or more of them have it, or for so many steps; who has it."""
        raise NotImplementedError

    def release(self, run: "RunEngine") -> None:
        """A run has left."""

    def close(self) -> None:
        """All runs have left, or are to be resumed later."""


class RunEngine(Engine):
    """What one run sees of a shared engine."""

    def __init__(self, shared: SharedEngine, wait: Callable[[], None], alone: Callable[[Task], Engine]) -> None:
        """`wait` returns when what was asked for is done; `alone` makes an engine for a run that cannot share."""
        self._shared, self._wait, self._make_alone = shared, wait, alone
        self.name, self.device = shared.name, shared.device.type
        self.request: Request | None = None
        self._alone: Engine | None = None

    def prepare(self, task: Task, device: torch.device) -> None:
        """Remember what is to be trained."""
        self.task = task

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Wait until these sessions are trained."""
        active = [session for session in sessions if not session.idle]
        if not active:
            return
        if self._alone is None:
            self.request = request = Request(active, on_round)
            self._wait()
            self.request = None
            try:
                if request.error is not None:
                    raise request.error
            finally:
                request.error = None  # its traceback holds this run, and its lock
            if not request.refused:
                return
            self._alone = self._make_alone(self.task)
            self.name = self._alone.name
        self._alone.train_cohorts(active, on_round)

    def requested(self) -> Request:
        """What it waits for."""
        assert self.request is not None, "it waits for something"
        return self.request

    def end_request(self, error: Exception | None) -> None:
        """What it waits for is done, or has failed."""
        self.requested().error = error

    def refuse(self) -> bool:
        """It cannot share this engine."""
        self.requested().refused = True
        return True

    def pause(self) -> None:
        """Let other runs work, since a student alone does not fill the device."""
        if self._shared.alternates:
            keep_drawing(self._wait)

    def close(self) -> None:
        """Leave the shared engine."""
        self._shared.release(self)
        if self._alone is not None:
            self._alone.close()
