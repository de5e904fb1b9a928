"""What travels between driver and workers: sessions on their way out, closed rounds on their way back.
Models travel as arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.federation.memory import Memory
from cpfl.federation.session import Outcome, Session
from cpfl.models import State, from_arrays, to_arrays

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Charge:
    """A cohort to go on with: its session's state after the last round that the driver closed."""

    cohort: int
    states: dict[str, Arrays]
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A round that a worker has done: the outcome without its tensors, and those as arrays."""

    cohort: int
    round: int
    outcome: Outcome
    model: Arrays
    memory: tuple[dict[str, Arrays], dict[int, Arrays]]


@dataclass(frozen=True)
class Left:
    """A cohort that a worker has given up between rounds, because it was asked to."""

    cohort: int


@dataclass(frozen=True)
class Trouble:
    """What ended a worker's training, if it was not the end of the work."""

    error: Exception | None  # a user's mistake, as it was raised
    story: str  # else the whole story
    device: str = ""  # what its GPU said, if that is to blame: others may do the work


Letter = Done | Left | Trouble


def charge(session: Session) -> Charge:
    """A session as it is now."""
    states, numbers = session.state()
    return Charge(session.cohort, {kind: to_arrays(state) for kind, state in states.items()}, numbers)


def put(charged: Charge, session: Session) -> None:
    """Bring a new session to where the driver's is."""
    session.restore({kind: from_arrays(state) for kind, state in charged.states.items()}, charged.numbers)


def done(cohort: int, round: int, outcome: Outcome, complete: bool = False) -> Done:
    """For the way back. `complete`: the device has made the cohort's model and rows, whatever else it has to do; rows
    of clients, which engines copy before they hand them out, are fetched in turn."""
    memory, fetched = outcome.memory, to_arrays
    if complete:
        fetched = beside
    kept = (
        {name: fetched(state) for name, state in memory.cohort.items()},
        {client: to_arrays(state) for client, state in memory.clients.items()},
    )
    return Done(cohort, round, replace(outcome, model={}, memory=Memory()), fetched(outcome.model), kept)


def beside(state: State) -> Arrays:
    """`to_arrays` for what a GPU has made already: copied while it goes on with the steps that are queued, where a copy
    in turn would wait for all of them."""
    devices = {value.device for value in state.values() if value.is_cuda}
    if len(devices) != 1:
        return to_arrays(state)
    side = _stream(devices.pop())
    with torch.cuda.stream(side):
        here = {name: _pinned(value) for name, value in state.items()}
    side.synchronize()
    return to_arrays(here)


def _pinned(value: Tensor) -> Tensor:
    if not value.is_cuda:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value.detach(), non_blocking=True)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def outcome(letter: Done) -> Outcome:
    """As the engine of the worker had it."""
    cohort, clients = letter.memory
    memory = Memory(
        {name: from_arrays(state) for name, state in cohort.items()},
        {client: from_arrays(state) for client, state in clients.items()},
    )
    return replace(letter.outcome, model=from_arrays(letter.model), memory=memory)
