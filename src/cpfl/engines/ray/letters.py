"""What travels between driver and workers: sessions on their way out, closed rounds on their way back.
Models travel as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from cpfl.federation.memory import Memory
from cpfl.federation.session import Outcome, Session
from cpfl.models import from_arrays, to_arrays

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


Letter = Done | Left | Trouble


def charge(session: Session) -> Charge:
    """A session as it is now."""
    states, numbers = session.state()
    return Charge(session.cohort, {kind: to_arrays(state) for kind, state in states.items()}, numbers)


def put(charged: Charge, session: Session) -> None:
    """Bring a new session to where the driver's is."""
    session.restore({kind: from_arrays(state) for kind, state in charged.states.items()}, charged.numbers)


def done(cohort: int, round: int, outcome: Outcome) -> Done:
    """For the way back."""
    memory = outcome.memory
    kept = (
        {name: to_arrays(state) for name, state in memory.cohort.items()},
        {client: to_arrays(state) for client, state in memory.clients.items()},
    )
    return Done(cohort, round, replace(outcome, model={}, memory=Memory()), to_arrays(outcome.model), kept)


def outcome(letter: Done) -> Outcome:
    """As the engine of the worker had it."""
    cohort, clients = letter.memory
    memory = Memory(
        {name: from_arrays(state) for name, state in cohort.items()},
        {client: from_arrays(state) for client, state in clients.items()},
    )
    return replace(letter.outcome, model=from_arrays(letter.model), memory=memory)
