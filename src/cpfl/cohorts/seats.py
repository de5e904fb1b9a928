"""Cohorts as rows of seats: their sizes are settled first, so that a plan is a question of who sits where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts import CohortPlan
from cpfl.cohorts.members import Members

Index = NDArray[np.int64]
EMPTY = -1


def sizes(clients: int, cohorts: int) -> Index:
    """Sizes that differ by at most one, the larger ones first."""
    found = np.full(cohorts, clients // cohorts, np.int64)
    found[: clients % cohorts] += 1
    return found


def seated(order: Index, sizes_N: Index) -> Index:
    """Clients in this order take the seats of cohort after cohort; (N, largest size), the last seat may be empty."""
    seats = np.full((len(sizes_N), int(sizes_N.max())), EMPTY, np.int64)
    seats[np.arange(seats.shape[1]) < sizes_N[:, None]] = order
    return seats


def listed(seats: Index) -> CohortPlan:
    """The plan, each cohort's clients in order."""
    return [Members(np.sort(row[row != EMPTY])) for row in seats]
