"""Label counts of whole cohorts: what a server may know of its clients' labels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import PrivacyError
from cpfl.experiment import Privacy
from cpfl.privacy import noise
from cpfl.randomness import stream

HIDDEN = -1
"""Fills the row of a cohort whose counts nobody may know."""

Counts = NDArray[np.int64]


class Table(Protocol):
    """Label counts of single clients, (M, C); an array is one, but so is whatever counts when it is asked."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, clients: NDArray[np.int64], /) -> Counts: ...


def cohort_counts(counts_MC: Table, plan: Sequence[Sequence[int]], privacy: Privacy, seed: int) -> Counts:
    """Label counts of whole cohorts, (N, C), as simulated clients tell them: all they know, or masked."""
    rows = []
    for cohort, clients in enumerate(plan):
        if len(clients) < privacy.smallest:  # a sum over so few tells of each
            rows.append(np.full(counts_MC.shape[1], HIDDEN))
            continue
        values = counts_MC[np.asarray(clients)]
        if privacy.epsilon:
            source = random.Random(int(stream(seed, "count-noise", cohort).integers(2**63)))
            values = np.stack([row + own_noise(privacy, len(clients), row.size, source) for row in values])
        rows.append(clean(values.sum(axis=0) if privacy.counts == "plain" else _masked(values)))
    return np.stack(rows)


def own_noise(privacy: Privacy, members: int, size: int, source: random.Random) -> Counts:
    """What one client adds to its counts before it tells them."""
    if not privacy.epsilon:
        return np.zeros(size, np.int64)
    return noise.share(privacy.epsilon, privacy.delta, members // 2 + 1, size, source)  # those who stay bring enough


def clean(total: Counts) -> Counts:
    """Counts again: noise may have pushed one below zero."""
    return np.maximum(total, 0)


def told(counts_NC: Counts) -> list[list[int] | None]:
    """The counts as a file holds them; None: hidden."""
    return [None if row[0] == HIDDEN else row.tolist() for row in counts_NC]


def read(rows: Sequence[Sequence[int] | None], classes: int) -> Counts:
    """What `told` wrote."""
    return np.array([[HIDDEN] * classes if row is None else list(row) for row in rows], np.int64)


def _masked(values_KC: Counts) -> Counts:
    try:
        from cpfl.privacy.rehearsal import masked_sum
    except ImportError:
        raise PrivacyError("privacy.counts = 'masked' needs cryptography: pip install 'cpfl[flower]'") from None
    return masked_sum(values_KC)
