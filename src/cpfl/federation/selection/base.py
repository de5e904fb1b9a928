"""What a selection rule is, what it knows of clients, and the two plain rules; those of papers are in guided.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from cpfl.devices.fleet import Fleet
from cpfl.federation import local_training, optimizers
from cpfl.federation.messages import ClientResult
from cpfl.settings import Federation

Sizes = NDArray[np.int64]  # training samples, by client of the whole federation


@dataclass(frozen=True)
class CohortInfo:
    """What a server may know of a cohort's clients before they train."""

    number: int
    clients: Sequence[int]
    federation: Federation
    fleet: Fleet
    model_bytes: int
    sizes: Sizes

    @cached_property
    def samples(self) -> dict[int, int]:
        """Training samples by client."""
        return {client: int(self.sizes[client]) for client in self.clients}

    @cached_property
    def seconds(self) -> dict[int, float]:
        """How long a whole round of each client lasts, with both transfers."""
        return {c: self.compute_seconds(c, self.steps(c)) + self.transfer_seconds(c) for c in self.clients}

    def steps(self, client: int) -> int:
        """Mini-batches of a client in a whole round."""
        return local_training.steps(self.federation, int(self.sizes[client]))

    def compute_seconds(self, client: int, steps: int) -> float:
        """Virtual seconds of so many steps: of whole batches, as in the paper, also where a batch is short."""
        size = self.federation.batch_size
        if size > self._largest:  # nobody has a whole batch: a step takes all samples of a client
            size = int(self.sizes[client])
        return self.fleet.training_seconds(client, steps, size)

    @cached_property
    def _largest(self) -> float:
        """Samples of the largest client, if they are known."""
        return float(self.sizes.max(initial=0)) or math.inf

    @property
    def sent_bytes(self) -> int:
        """What travels to a client, and back; a cohort of one client has no traffic."""
        return 0 if len(self.clients) == 1 else self.model_bytes

    def transfer_seconds(self, client: int) -> float:
        """Virtual seconds of the model's way to the client and back."""
        return 2 * self.fleet.transfer_seconds(client, self.sent_bytes) if self.sent_bytes else 0.0

    def available_until(self, client: int, clock: float) -> float:
        """When a client leaves that is available now; the clock itself: it is not available."""
        availability = self.fleet.availability
        return float("inf") if availability is None else availability.schedule(client).available_until(clock)

    def available_from(self, client: int, clock: float) -> float:
        """When a client is available next."""
        availability = self.fleet.availability
        return clock if availability is None else availability.schedule(client).next_available(clock)


class Selection:
    """A selection rule: subclass it, write `select`, and name it `module:Class` in federation.selection.

    Keyword arguments after `cohort` are federation.selection_args. `state` returns what it has learnt, so that a
    resumed run continues as it would have.
    """

    plans_ahead = False  # True: a selection needs no results of earlier rounds, so engines may begin before these
    squared_losses = False  # True: clients report the sum of their squared sample losses

    def __init__(self, cohort: CohortInfo) -> None:
        self.cohort = cohort

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
        """At most `count` of the `available` clients (there is at least one) for the round that begins at `clock`."""
        raise NotImplementedError

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        """Learn from the results of a round that lasted so many virtual seconds and ended at `clock`."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; plain numbers, strings, lists and dictionaries with strings as keys."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


class Random(Selection):
    """A random subset of the available clients, in client order."""

    plans_ahead = True

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
        if count >= len(available):
            return list(available)
        return sorted(available[i] for i in rng.choice(len(available), count, replace=False))


class All(Selection):
    """Every available client."""

    plans_ahead = True

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
        return list(available)


def participants_per_round(federation: Federation, clients: int) -> int:
    """How many clients of a cohort of this size take part: federation.participants, or a fraction, at least one."""
    count = federation.participants or max(1, round(federation.participation * clients))
    return min(count, clients)


def round_seconds(federation: Federation, fleet: Fleet, sizes: Sizes, model_bytes: int) -> NDArray[np.float64]:
    """What a round takes each client of a cohort of several: the model down, its local work, the model up."""
    size = optimizers.one_way_bytes(federation, model_bytes)
    everyone = CohortInfo(0, range(len(sizes)), federation, fleet, size, sizes)
    return np.array(list(everyone.seconds.values()))


def round_cpu_seconds(
    federation: Federation, fleet: Fleet, sizes: Sizes, cohorts: Sequence[Sequence[int]]
) -> list[float]:
    """What a round of each cohort will cost, on average over who takes part."""
    seconds = round_seconds(federation, fleet, sizes, model_bytes=0)
    return [
        participants_per_round(federation, len(members)) * float(seconds[np.asarray(members)].mean())
        for members in cohorts
    ]
