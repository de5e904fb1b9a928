"""Plans by the seconds that a client's round takes, alone or weighed against label skew."""

from __future__ import annotations

import numpy as np

from cpfl.cohorts.labels import Counts, banded
from cpfl.cohorts.measures import Floats, skews
from cpfl.cohorts.search import improve
from cpfl.cohorts.seats import EMPTY, Index, seated, sizes


def fast_with_fast(seconds_M: Floats, cohorts: int, order: Index) -> Index:
    """Seats by speed: the fastest clients in the first cohort, the slowest in the last; of equals, in the given order.

    No other plan of these sizes has a shorter sum of rounds.
    """
    return seated(order[np.argsort(seconds_M[order], kind="stable")], sizes(len(order), cohorts))


def weighed(
    counts_MC: Counts,
    seconds_M: Floats,
    cohorts: int,
    order: Index,
    rng: np.random.Generator,
    skew: float,
    speed: float,
) -> Index:
    """Seats that keep two things low at once, each between 0 and 1 and with its weight: the mean skew of cohorts, and
    the mean length of their rounds as a share of the slowest client's.

    Bands of cohorts share a stretch of speeds and balance labels among themselves. One band is the balanced plan, a
    band for each cohort the plan by speed; the best width is the start for swaps.
    """
    counts = counts_MC.astype(np.float64)
    whole_C, slowest = counts.sum(axis=0), seconds_M.max()

    def cost(sums: Floats, size: Floats, longest: Floats) -> Floats:
        both: Floats = skew * skews(sums, whole_C) + speed * longest / slowest
        return both

    def total(seats: Index) -> float:
        sums = np.array([counts[row[row != EMPTY]].sum(axis=0) for row in seats])
        longest = np.where(seats == EMPTY, 0.0, seconds_M[seats]).max(axis=1)
        return float(cost(sums, sums, longest).sum())

    sorted_by_speed = fast_with_fast(seconds_M, cohorts, order)
    widths = sorted({min(4**k, cohorts) for k in range(cohorts.bit_length())})
    starts = [sorted_by_speed if width == 1 else banded(counts, sorted_by_speed, width) for width in widths]
    return improve(min(starts, key=total), counts, seconds_M, cost, rng)
