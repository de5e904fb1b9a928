"""A plan made better by exchange: two clients of two cohorts swap seats wherever that lowers what the plan costs.

Cohorts are paired at random; each pair looks at some random swaps and makes the best one if it helps. Pairs share no
cohort, so all of them move at once. The cost is a sum over cohorts, so a swap is judged by two of them; nothing grows
with the square of the clients.

Axes: M clients, N cohorts, S seats of a cohort, F features, P pairs, K swaps that a pair looks at.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.seats import EMPTY, Index

Floats = NDArray[np.float64]
Cost = Callable[[Floats, Floats, Floats], Floats]
"""(sums of features (…, F), sizes (…), longest (…)) -> cost of each cohort (…)."""

LOOKS = 4096  # swaps in one step, of all pairs
NUMBERS = 2**24  # features that are looked at in all: about a second
ENOUGH = 64  # steps in a row without a swap: it will hardly get better
GAIN = 1e-12


def improve(seats_NS: Index, features_MF: Floats, seconds_M: Floats, cost: Cost, rng: np.random.Generator) -> Index:
    """The seats after swaps that lower the cost, until they hardly do; sizes stay."""
    cohorts = len(seats_NS)
    if cohorts < 2 or seats_NS.shape[1] < 2:  # nothing to choose
        return seats_NS
    seats = seats_NS.copy()
    taken = seats != EMPTY
    size_N = taken.sum(axis=1)
    sums_NF = np.array([features_MF[row[full]].sum(axis=0) for row, full in zip(seats, taken, strict=True)])
    top_N2 = _slowest_two(seats, seconds_M)
    pairs = cohorts // 2
    looks = max(1, LOOKS // pairs)
    steps = max(1, NUMBERS // (pairs * looks * features_MF.shape[1]))
    idle = 0
    for _ in range(steps):
        drawn = rng.permutation(cohorts)
        two = (drawn[:pairs], drawn[pairs : 2 * pairs])
        places = [np.floor(rng.random((pairs, looks)) * size_N[side, None]).astype(np.int64) for side in two]
        who = [seats[side[:, None], place] for side, place in zip(two, places, strict=True)]
        moved_PKF = features_MF[who[1]] - features_MF[who[0]]
        gain_PK = np.zeros((pairs, looks))
        for side, own, other, sign in ((two[0], who[0], who[1], 1), (two[1], who[1], who[0], -1)):
            rest_PK = np.where(seconds_M[own] == top_N2[side, 1, None], top_N2[side, 0, None], top_N2[side, 1, None])
            longest_PK = np.maximum(rest_PK, seconds_M[other])
            size_P = size_N[side].astype(np.float64)
            now_P = cost(sums_NF[side], size_P, top_N2[side, 1])
            gain_PK += now_P[:, None] - cost(sums_NF[side][:, None] + sign * moved_PKF, size_P[:, None], longest_PK)
        best_P = gain_PK.argmax(axis=1)
        rows = np.flatnonzero(gain_PK[np.arange(pairs), best_P] > GAIN)
        idle = idle + 1 if len(rows) == 0 else 0
        if idle == ENOUGH:
            break
        k = best_P[rows]
        first, second = two[0][rows], two[1][rows]
        seats[first, places[0][rows, k]] = who[1][rows, k]
        seats[second, places[1][rows, k]] = who[0][rows, k]
        sums_NF[first] += moved_PKF[rows, k]
        sums_NF[second] -= moved_PKF[rows, k]
        changed = np.concatenate([first, second])
        top_N2[changed] = _slowest_two(seats[changed], seconds_M)
    return seats


def _slowest_two(seats: Index, seconds_M: Floats) -> Floats:
    """The second slowest and the slowest client's seconds in each cohort."""
    seconds = np.where(seats == EMPTY, -np.inf, seconds_M[seats])
    if seconds.shape[1] == 1:
        seconds = np.concatenate([np.full((len(seats), 1), -np.inf), seconds], axis=1)
    found: Floats = np.partition(seconds, -2, axis=1)[:, -2:]
    return found
