"""Who holds which samples: the split of a training set over clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.data.samples import Samples
from cpfl.errors import DataError
from cpfl.experiment import Experiment
from cpfl.randomness import stream

Index = NDArray[np.int64]


@dataclass(frozen=True)
class ClientIndex:
    """One client's samples: what it trains on and what it judges the cohort's model by."""

    training: Index
    validation: Index


def split(experiment: Experiment, train: Samples) -> list[ClientIndex]:
    """The clients of the experiment, in order."""
    data, clients, seed = experiment.data, experiment.clients, experiment.seed
    if train.y is None:
        raise DataError(f"data.train = {data.train!r} has no labels: clients need them to train")
    match data.split:
        case "dirichlet":
            parts = dirichlet(train.y, clients, data.alpha, seed, data.remainder)
        case "iid":
            parts = np.array_split(stream(seed, "split").permutation(len(train)), clients)
        case "shards":
            parts = shards(train.y, clients, data.shards, seed)
        case "column":
            parts = by_column(train, data.column, clients)
    parts = repair([np.sort(part).astype(np.int64) for part in parts], seed)
    return [hold_out(part, k, experiment) for k, part in enumerate(parts)]


def dirichlet(y: Index, clients: int, alpha: float, seed: int, remainder: str) -> list[Index]:
    """For each class one Dirichlet draw of the clients' shares, as the authors' code does it."""
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label in range(int(y.max()) + 1):
        rng = stream(seed, "split", label)
        samples = rng.permutation(np.flatnonzero(y == label))
        exact = rng.dirichlet(np.full(clients, alpha)) * len(samples)
        counts = np.floor(exact).astype(np.int64)
        if remainder == "last":
            counts[-1] = len(samples) - counts[:-1].sum()
        else:
            largest = np.argsort(-(exact - counts), kind="stable")
            counts[largest[: len(samples) - counts.sum()]] += 1
        for part, piece in zip(parts, np.split(samples, np.cumsum(counts)[:-1]), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def shards(y: Index, clients: int, each: int, seed: int) -> list[Index]:
    """Samples sorted by label, cut into equal shards, `each` of them dealt to every client."""
    pieces = np.array_split(np.argsort(y, kind="stable"), clients * each)
    dealt = stream(seed, "split").permutation(clients * each).reshape(clients, each)
    return [np.concatenate([pieces[p] for p in row]) for row in dealt]


def by_column(train: Samples, column: str, clients: int) -> list[Index]:
    """The natural split: one client per value of an id column, a subset that is the same for all seeds."""
    if column not in train.columns:
        known = ", ".join(train.columns) or "none"
        raise DataError(f"data.column = {column!r} is no column of the training set; its columns: {known}")
    values, owner = np.unique(train.columns[column], return_inverse=True)
    if clients > len(values):
        raise DataError(f"clients = {clients} is more than the {len(values)} values of data.column = {column!r}")
    order = np.argsort(owner, kind="stable")
    pieces = np.split(order, np.cumsum(np.bincount(owner))[:-1])
    chosen = np.sort(stream(0, "subset").permutation(len(values))[:clients])
    return [pieces[v] for v in chosen]


def repair(parts: list[Index], seed: int) -> list[Index]:
    """An empty client gets one sample from a random client that has more than one."""
    for client, part in enumerate(parts):
        if len(part):
            continue
        rng = stream(seed, "repair", client)
        donors = [k for k, other in enumerate(parts) if len(other) > 1]
        donor = donors[rng.integers(len(donors))]
        position = rng.integers(len(parts[donor]))
        parts[client] = parts[donor][position : position + 1]
        parts[donor] = np.delete(parts[donor], position)
    return parts


def hold_out(part: Index, client: int, experiment: Experiment) -> ClientIndex:
    """A client with enough samples keeps a share of them to validate on."""
    data, size = experiment.data, len(part)
    held = math.floor(data.validation * size + 1e-9) if size >= data.validation_minimum else 0
    order = stream(experiment.seed, "validation", client).permutation(size)
    return ClientIndex(training=np.sort(part[order[held:]]), validation=np.sort(part[order[:held]]))


def label_counts(y: Index, clients: list[ClientIndex], classes: int) -> NDArray[np.int64]:
    """Training labels per client and class, shape (M, C)."""
    return np.stack([np.bincount(y[client.training], minlength=classes) for client in clients])
