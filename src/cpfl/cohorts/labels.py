"""Plans by labels: cohorts that mirror the whole, or cohorts of similar clients.

Axes: M clients, N cohorts, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.measures import Floats, skews
from cpfl.cohorts.search import improve
from cpfl.cohorts.seats import EMPTY, Index, seated, sizes

Counts = NDArray[np.int64]
TOGETHER = 1024  # cohorts that clients are dealt out to at once; of more, each part gets some clients at random


def balanced(counts_MC: Counts, cohorts: int, order: Index, rng: np.random.Generator) -> Index:
    """Seats of cohorts whose label distributions are as near the whole's as swaps bring them."""
    counts = counts_MC.astype(np.float64)
    whole_C = counts.sum(axis=0)
    seats = dealt(counts, cohorts, order)
    return improve(seats, counts, np.zeros(len(counts)), lambda sums, size, longest: skews(sums, whole_C), rng)


def dealt(counts_MC: Floats, cohorts: int, order: Index) -> Index:
    """The largest client first, each to the cohort with a free seat that lacks most of what it holds; of equals, in
    the given order. Every cohort is to get one n-th of each label."""
    if cohorts > TOGETHER:
        return banded(counts_MC, seated(order, sizes(len(order), cohorts)), TOGETHER)
    size_N = sizes(len(order), cohorts)
    lack_NC = np.tile(counts_MC[order].sum(axis=0) / cohorts, (cohorts, 1))
    free_N, closed_N = size_N.copy(), np.zeros(cohorts)
    cohort_of = np.empty(len(order), np.int64)
    largest = np.argsort(-counts_MC[order].sum(axis=1), kind="stable")
    for place in largest.tolist():
        client_C = counts_MC[order[place]]
        chosen = int((lack_NC @ client_C + closed_N).argmax())  # of the squared distance, what the choice can change
        lack_NC[chosen] -= client_C
        free_N[chosen] -= 1
        if not free_N[chosen]:
            closed_N[chosen] = -np.inf
        cohort_of[place] = chosen
    return seated(order[np.argsort(cohort_of, kind="stable")], size_N)


def banded(counts_MC: Floats, seats_NS: Index, width: int) -> Index:
    """The same for each band of so many cohorts, whose clients stay in their band."""
    seats = np.full_like(seats_NS, EMPTY)
    for first in range(0, len(seats), width):
        band = seats_NS[first : first + width]
        among = dealt(counts_MC, len(band), band[band != EMPTY])
        seats[first : first + width, : among.shape[1]] = among
    return seats


def clustered(counts_MC: Counts, cohorts: int, order: Index, rng: np.random.Generator) -> Index:
    """Seats of cohorts of clients with similar label distributions, as k-means means it, but of equal sizes."""
    counts = counts_MC.astype(np.float64)
    share_MC = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size_N = sizes(len(order), cohorts)
    seats = seated(_halved(share_MC, order, size_N), size_N)

    def spread(sums: Floats, size: Floats, longest: Floats) -> Floats:
        # Squared distances to the cohort's mean, less the clients' own squares, which no swap changes.
        together: Floats = np.square(sums).sum(axis=-1) / size
        return -together

    return improve(seats, share_MC, np.zeros(len(order)), spread, rng)


def _halved(share_MC: Floats, order: Index, size_N: Index) -> Index:
    """Clients cut in two where they differ most, and again, until each cohort's are together."""
    if len(size_N) == 1:
        return order
    here = share_MC[order]
    away = here - here.mean(axis=0)
    direction = np.linalg.eigh(away.T @ away)[1][:, -1]
    direction *= np.sign(direction[np.abs(direction).argmax()])  # an eigenvector's sign is the library's whim
    ranked = order[np.argsort(np.round(away @ direction, 9), kind="stable")]
    half = len(size_N) // 2
    cut = int(size_N[:half].sum())
    return np.concatenate(
        [_halved(share_MC, ranked[:cut], size_N[:half]), _halved(share_MC, ranked[cut:], size_N[half:])]
    )
