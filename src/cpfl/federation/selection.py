"""Who takes part in a round: what every selection part is, and the two plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.devices import Fleet
from cpfl.experiment import Federation
from cpfl.federation import local
from cpfl.federation.reports import ClientResult


@dataclass(frozen=True)
class Cohort:
    """What a server may know of a cohort's clients before they train."""

    number: int
    clients: Sequence[int]
    federation: Federation
    fleet: Fleet
    model_bytes: int
    sizes: NDArray[np.int64]  # training samples, by client of the whole federation

    @cached_property
    def samples(self) -> dict[int, int]:
        """Training samples by client."""
        return {client: int(self.sizes[client]) for client in self.clients}

    @cached_property
    def seconds(self) -> dict[int, float]:
        """How long a whole round of each client lasts, with both transfers."""
        return {
            client: self.computing(client, self.steps(client)) + self.transferring(client) for client in self.clients
        }

    def steps(self, client: int) -> int:
        """Mini-batches of a client in a whole round."""
        return local.steps(self.federation, int(self.sizes[client]))

    def computing(self, client: int, steps: int) -> float:
        """Virtual seconds of so many steps."""
        return self.fleet.training_seconds(client, steps, self.federation.batch_size)

    @property
    def sent_bytes(self) -> int:
        """What travels to a client, and back; a cohort of one client has no traffic."""
        return 0 if len(self.clients) == 1 else self.model_bytes

    def transferring(self, client: int) -> float:
        """Virtual seconds of the model's way to the client and back."""
        return 2 * self.fleet.transfer_seconds(client, self.sent_bytes) if self.sent_bytes else 0.0

    def until(self, client: int, clock: float) -> float:
        """When a client leaves that is there at this time; the time itself: it is not there."""
        there = self.fleet.availability
        return float("inf") if there is None else there.week(client).until(clock)

    def back(self, client: int, clock: float) -> float:
        """When a client is there next."""
        there = self.fleet.availability
        return clock if there is None else there.week(client).back(clock)


class Selection:
    """A selection part: subclass it, write `choose`, and name it `module:Class` in federation.selection.

    What it learns it keeps in what `state` returns, so that a resumed run goes on as it would have.
    """

    foresees = False  # True: the choice needs no earlier round's outcome, so engines may begin before that is known
    squares = False  # True: clients report the sum of their squared sample losses

    def __init__(self, cohort: Cohort) -> None:
        """Keyword arguments after `cohort` are federation.selection_args."""
        self.cohort = cohort

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        """At most `wanted` of the `able` clients (there are always some) for the round that begins at this moment."""
        raise NotImplementedError

    def learn(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        """What a round brought that lasted so many virtual seconds and ended at this moment."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain numbers, strings, lists and dictionaries with strings as keys."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class Random(Selection):
    """A random part of those that are there, in client order."""

    foresees = True

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        if wanted >= len(able):
            return list(able)
        return sorted(able[i] for i in rng.choice(len(able), wanted, replace=False))


class All(Selection):
    """Everybody who is there."""

    foresees = True

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        return list(able)


def size(federation: Federation, clients: int) -> int:
    """How many of a cohort's clients take part: as many as set, or their share, at least one."""
    wanted = federation.participants or max(1, round(federation.participation * clients))
    return min(wanted, clients)
