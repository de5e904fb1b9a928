"""Who holds which samples: the split of a training set over clients."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.samples import Array, Samples
from cpfl.errors import DataError
from cpfl.objectives.base import NOT_COUNTED, Labels, Objective
from cpfl.objectives.base import objective as objective_of
from cpfl.randomness import stream, streams
from cpfl.settings import Data, Experiment

Index = NDArray[np.int64]
NOBODY = -1  # the owner of a sample that no client holds


@dataclass(frozen=True)
class ClientIndex:
    """One client's samples: those it trains on and those it validates the cohort's model with."""

    training: Index
    validation: Index


class Clients(Sequence[ClientIndex]):
    """The samples of all clients, as a few arrays whatever the number of clients."""

    def __init__(self, order: Index, starts: Index, held: NDArray[np.bool_]) -> None:
        self._order, self._starts, self._held = order, starts, held  # samples by client, and which ones validate
        owned = np.concatenate([[0], np.cumsum(held)])
        self.validation_sizes: Index = owned[starts[1:]] - owned[starts[:-1]]
        self.training_sizes: Index = np.diff(starts) - self.validation_sizes

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, client: Any) -> Any:
        client = range(len(self))[client]  # counts from the end, or raises IndexError
        part = slice(self._starts[client], self._starts[client + 1])
        samples, held = self._order[part], self._held[part]
        return ClientIndex(samples[~held], samples[held])

    def held_out(self) -> tuple[Index, Index]:
        """All validation samples, client after client, and the owner of each."""
        return self._order[self._held], np.repeat(np.arange(len(self)), self.validation_sizes)

    def label_counts(self, objective: Objective, y: Labels, classes: int, chosen: Index) -> NDArray[np.int64]:
        """What the objective counts of the chosen clients' training labels, by client and class, (K, C)."""
        sizes = self._starts[chosen + 1] - self._starts[chosen]
        before = np.cumsum(sizes) - sizes
        positions = np.arange(sizes.sum()) + np.repeat(self._starts[chosen] - before, sizes)
        trains = ~self._held[positions]
        items = objective.counted(y[self._order[positions[trains]]])
        flat = np.repeat(np.arange(len(chosen)), sizes)[trains][:, None] * classes + items
        known = flat[items != NOT_COUNTED]
        return np.bincount(known, minlength=len(chosen) * classes).reshape(len(chosen), classes)

    def value_range(self, values: Index) -> tuple[Index, Index]:
        """Of a value that every sample has, each client's lowest and highest."""
        held, starts = values[self._order], self._starts[:-1]  # no client is empty
        return np.minimum.reduceat(held, starts), np.maximum.reduceat(held, starts)

    def fingerprint(self) -> str:
        """A checksum of who holds what for which use."""
        owners = hashlib.sha256()
        for column in (self._starts, self._order, self._held):
            owners.update(np.ascontiguousarray(column).data)
        return owners.hexdigest()


def split(experiment: Experiment, train: Samples) -> Clients:
    """The clients of the experiment, in order."""
    data, clients, seed = experiment.data, experiment.clients, experiment.seed
    match data.split:
        case "dirichlet":
            owner = dirichlet(single_labels(experiment, train), clients, data.alpha, seed, data.remainder)
        case "iid":
            owner = dealt(stream(seed, "split").permutation(len(train)), np.arange(clients), clients)
        case "shards":
            if clients * data.shards > len(train):
                most = len(train) // clients
                raise DataError(
                    f"data.shards = {data.shards} for each of clients = {clients} is more than the {len(train)} "
                    f"training samples: 1 to {most}"
                )
            order = stream(seed, "split").permutation(clients * data.shards)
            labels = single_labels(experiment, train)
            owner = dealt(np.argsort(labels, kind="stable"), np.argsort(order) // data.shards, len(order))
        case "column":
            owner = by_column(train, data, clients)
    owner = repair(owner, clients, seed)
    order = np.argsort(owner, kind="stable")[np.count_nonzero(owner == NOBODY) :]
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner[owner != NOBODY], minlength=clients))])
    return Clients(order, starts, hold_out(starts, experiment))


def single_labels(experiment: Experiment, train: Samples) -> Index:
    """The one class of every sample; refused where samples have none, or several."""
    if train.y is None:
        raise DataError(f"data.train = {experiment.data.train!r} has no labels: clients need them to train")
    objective = objective_of(experiment.model)
    found = objective.counted(train.y)
    if not objective.has_classes or found.shape[1] != 1:
        raise DataError(
            f"data.split = {experiment.data.split!r} divides samples by their one class, which model.objective = "
            f"{experiment.model.objective!r} does not give them: set data.split = iid or column"
        )
    return found[:, 0]


def dirichlet(y: Index, clients: int, alpha: float, seed: int, remainder: str) -> Index:
    """For each class one Dirichlet draw of the clients' shares, as the authors' code does it."""
    owner = np.empty(len(y), np.int64)
    for label in np.unique(y).tolist():  # a class that nobody has takes no time
        rng = stream(seed, "split", label)
        samples = rng.permutation(np.flatnonzero(y == label))
        exact = rng.dirichlet(np.full(clients, alpha)) * len(samples)
        counts = np.floor(exact).astype(np.int64)
        if remainder == "last":
            counts[-1] = len(samples) - counts[:-1].sum()
        else:
            largest = np.argsort(-(exact - counts), kind="stable")
            counts[largest[: len(samples) - counts.sum()]] += 1
        owner[samples] = np.repeat(np.arange(clients), counts)
    return owner


def dealt(samples: Index, receiver: Index, pieces: int) -> Index:
    """Samples in pieces whose sizes differ by at most one; each piece goes to its receiver."""
    sizes = len(samples) // pieces + (np.arange(pieces) < len(samples) % pieces)
    owner = np.empty(len(samples), np.int64)
    owner[samples] = np.repeat(receiver, sizes)
    return owner


def id_column(train: Samples, column: str) -> Array:
    """The column that says whose a sample is."""
    if column not in train.columns:
        known = ", ".join(train.columns) or "none"
        raise DataError(f"data.column = {column!r} is no column of the training set; its columns: {known}")
    return train.columns[column]


def by_column(train: Samples, data: Data, clients: int) -> Index:
    """The natural split: one client per value of an id column, a subset that is the same for all seeds."""
    values, owner = np.unique(id_column(train, data.column), return_inverse=True)
    if clients > len(values):
        limit = f" (data.train_limit = {data.train_limit})" if data.train_limit else ""
        raise DataError(
            f"clients = {clients} is more than the {len(values)} values of data.column = {data.column!r}{limit}: set "
            f"clients = {len(values)} or fewer"
        )
    chosen = np.sort(stream(0, "subset").permutation(len(values))[:clients])
    client_of = np.full(len(values), NOBODY)
    client_of[chosen] = np.arange(clients)
    return client_of[owner]


def repair(owner: Index, clients: int, seed: int) -> Index:
    """An empty client gets one sample from a random client that has more than one."""
    sizes = np.bincount(owner[owner != NOBODY], minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        rng = stream(seed, "repair", int(client))
        donors = np.flatnonzero(sizes > 1)
        donor = donors[rng.integers(len(donors))]
        sample = np.flatnonzero(owner == donor)[rng.integers(sizes[donor])]
        owner[sample] = client
        sizes[client], sizes[donor] = 1, sizes[donor] - 1
    return owner


def validation_counts(experiment: Experiment, sizes: Index) -> Index:
    """How many of so many samples validate, by client."""
    counts: Index = np.floor(experiment.data.validation * sizes + 1e-9).astype(np.int64)
    counts[sizes < experiment.data.validation_min_samples] = 0
    return counts


def hold_out(starts: Index, experiment: Experiment) -> NDArray[np.bool_]:
    """Which samples validate: a client with enough of them keeps a share."""
    sizes = np.diff(starts)
    counts = validation_counts(experiment, sizes)
    held = np.zeros(starts[-1], np.bool_)
    some = np.flatnonzero(counts)
    for client, rng in zip(some.tolist(), streams(experiment.seed, "validation", some), strict=True):
        order = rng.permutation(int(sizes[client]))
        held[starts[client] + order[: counts[client]]] = True
    return held
