"""Label counts of whole cohorts: what a server may know of its clients' labels."""

import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import PrivacyError
from cpfl.privacy import noise
from cpfl.randomness import stream
from cpfl.settings import Privacy

HIDDEN = -1
"""Fills the row of a cohort whose counts nobody may know."""

Counts = NDArray[np.int64]


class Table(Protocol):
    """Label counts of single clients, (M, C): an array, or an object that counts on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, clients: NDArray[np.int64], /) -> Counts: ...


def cohort_counts(counts_MC: Table, cohorts: Sequence[Sequence[int]], privacy: Privacy, seed: int) -> Counts:
    """Label counts of whole cohorts, (N, C), as simulated clients report them: in plain, or as a masked sum."""
    rows = []
    for cohort, clients in enumerate(cohorts):
        if len(clients) < privacy.min_clients:  # a sum over so few reveals each of them
            rows.append(np.full(counts_MC.shape[1], HIDDEN))
            continue
        values = counts_MC[np.asarray(clients)]
        if privacy.epsilon:
            source = random.Random(int(stream(seed, "count-noise", cohort).integers(2**63)))
            values = np.stack([row + client_noise(privacy, len(clients), row.size, source) for row in values])
        rows.append(clean(values.sum(axis=0) if privacy.label_counts == "plain" else _masked(values)))
    return np.stack(rows)


def client_noise(privacy: Privacy, clients: int, size: int, source: random.Random) -> Counts:
    """What one of so many clients adds to its counts before it reports them; those who must stay bring enough."""
    if not privacy.epsilon:
        return np.zeros(size, np.int64)
    return noise.share(privacy.epsilon, privacy.delta, clients // 2 + 1, size, source)


def clean(total: Counts) -> Counts:
    """Counts again: noise may have pushed one below zero."""
    return np.maximum(total, 0)


def to_rows(counts_NC: Counts) -> list[list[int] | None]:
    """The counts as a file holds them; None: hidden."""
    return [None if row[0] == HIDDEN else row.tolist() for row in counts_NC]


def from_rows(rows: Sequence[Sequence[int] | None], classes: int) -> Counts:
    """What `to_rows` wrote."""
    return np.array([[HIDDEN] * classes if row is None else list(row) for row in rows], np.int64)


def _masked(values_KC: Counts) -> Counts:
    try:
        from cpfl.privacy.masked_sum import simulated_sum
    except ImportError:
        raise PrivacyError("privacy.label_counts = 'masked' needs cryptography: pip install 'cpfl[flower]'") from None
    return simulated_sum(values_KC)
