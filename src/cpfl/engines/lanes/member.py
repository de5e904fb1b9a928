"""The runs that share lanes: what all of them need, and where the rows of each one lie.

A run alone is the only member of its lanes. Runs of a sweep share them: their clients wait in one queue for the next
free lane.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.engines.lanes.batch_schedule import Source
from cpfl.federation import local_training, optimizers
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.settings import Federation
from cpfl.settings.choices import SELECTIONS, SERVER_OPTIMIZERS
from cpfl.task.task import Task

ServerKey = str
"""A server optimizer with its arguments: members with the same one are aggregated together."""


@dataclass(frozen=True)
class Rows:
    """Rows of the device's tables, of one member or of all."""

    cohorts: int
    clients: int
    models: int  # of clients that have ended, where a server needs all of them

    @classmethod
    def of(cls, task: Task) -> "Rows":
        """The rows that a task needs."""
        slots = round_slots(task)
        return cls(len(task.cohorts), task.experiment.clients, int(slots[-1]))

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(self.cohorts + other.cohorts, self.clients + other.clients, self.models + other.models)


class Member:
    """A run in lanes: its task, and the first of its rows."""

    def __init__(self, number: int, task: Task, first: Rows) -> None:
        self.number, self.task, self.first = number, task, first  # no other member ever has this number
        self.settings, self.seed, self.source = task.experiment.federation, task.experiment.seed, Source.of(task)
        self.clients, self.sizes = task.data.clients, task.data.clients.training_sizes.tolist()
        self.depth = int(local_training.all_steps(self.settings, task.data.clients.training_sizes).max())
        self.server_key = server_key(self.settings)
        self.server = optimizers.server_optimizer(self.settings)
        self._slots = round_slots(task)

    def cohort_row(self, session: Session) -> int:
        """Where a cohort's model lies."""
        return self.first.cohorts + session.cohort

    def client_row(self, client: int) -> int:
        """Where what is known of a client lies."""
        return self.first.clients + client

    def model_row(self, session: Session) -> int:
        """Where the first of the models lies that a cohort's round aggregates together."""
        return self.first.models + int(self._slots[session.cohort])


class Space:
    """Free rows of one table, in whole stretches."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)] if size else []  # (first, count), in order

    def take(self, count: int) -> int | None:
        """The first of so many rows in a stretch; None: there is no such stretch."""
        if count == 0:
            return 0
        for k, (first, free) in enumerate(self._free):
            if free >= count:
                self._free[k : k + 1] = [(first + count, free - count)] if free > count else []
                return first
        return None

    def give_back(self, first: int, count: int) -> None:
        """Free rows that were taken."""
        joined: list[tuple[int, int]] = []
        for start, size in heapq.merge(self._free, [(first, count)] if count else []):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        self._free = joined


def round_slots(task: Task) -> NDArray[np.int64]:
    """The first slot of every cohort for the models that a round aggregates together, and the one after the last."""
    return np.cumsum([0, *(_round_clients(task.experiment.federation, len(cohort)) for cohort in task.cohorts)])


def _round_clients(settings: Federation, clients: int) -> int:
    """The most clients whose models one round of a cohort may aggregate."""
    if settings.straggler_policy == "stale":  # those of all earlier rounds may arrive at once
        return clients
    return min(clients, settings.buffer_size or participants_per_round(settings, clients))


def server_key(settings: Federation) -> ServerKey:
    """The same for server optimizers that do the same to a round's sum."""
    seen = "" if settings.server in SERVER_OPTIMIZERS.names else settings  # a user's class may look at any setting
    return f"{settings.server} {sorted(settings.server_args.items())!r} {seen!r}"


def adds_up(settings: Federation) -> bool:
    """Whether a server needs no more than the sum of its clients' models, so that others may be beside it."""
    server = optimizers.server_optimizer(settings)
    plain = type(server).clip_update is ServerOptimizer.clip_update
    return plain and not server.needs_all_models and not settings.mixes_ages


def has_squared_losses(settings: Sequence[Federation]) -> bool:
    """Whether a selection rule of any of them wants the squared losses of samples."""
    return any(SELECTIONS.find(one.selection).squared_losses for one in settings)


def common_rate(settings: Sequence[Federation]) -> float | None:
    """The learning rate of all rounds of all of them; None: they differ."""
    rates = {one.lr for one in settings}
    return rates.pop() if len(rates) == 1 and all(map(local_training.constant_rate, settings)) else None


def largest_batch(task: Task) -> int:
    """Samples in the largest mini-batch of any client."""
    return local_training.largest_batch(task.experiment.federation, int(task.data.clients.training_sizes.max()))
