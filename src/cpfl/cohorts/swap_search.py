"""Local search by swaps: two clients of two cohorts change slots wherever that lowers the cost of the assignment.

Cohorts are paired at random; each pair tries some random swaps and makes the best one if it lowers the cost. No two
pairs share a cohort, so all of them swap at once. The cost is a sum over cohorts, so a swap changes two terms of it.

Axes: M clients, N cohorts, S slots of a cohort, F features, P pairs, K swaps that a pair tries.
"""

from collections.abc import Callable

import numpy as np

from cpfl.cohorts.base import EMPTY, ClientView, Floats, Index, by_slot
from cpfl.randomness import stream

Cost = Callable[[Floats, Floats, Floats], Floats]
"""(sums of features (…, F), sizes (…), longest (…)) -> cost of each cohort (…)."""

TRIALS = 4096  # swaps in one step, of all pairs
BUDGET = 2**24  # features that are compared in all: about a second
PATIENCE = 64  # steps without a swap after which the search ends
MIN_GAIN = 1e-12


def improve(
    clients: ClientView, slots_NS: Index, features_MF: Floats, cost: Cost, seconds: Floats | None = None
) -> Index:
    """The cohort of every client after swaps that lower the cost; sizes stay."""
    cohorts = len(slots_NS)
    if cohorts < 2 or slots_NS.shape[1] < 2:  # nothing to choose
        return by_slot(slots_NS)
    slots, rng = slots_NS.copy(), stream(clients.seed, "swaps")
    seconds_M = np.zeros(clients.count) if seconds is None else seconds
    taken = slots != EMPTY
    size_N = taken.sum(axis=1)
    sums_NF = np.array([features_MF[row[full]].sum(axis=0) for row, full in zip(slots, taken, strict=True)])
    top_N2 = _slowest_two(slots, seconds_M)
    pairs = cohorts // 2
    trials = max(1, TRIALS // pairs)
    steps = max(1, BUDGET // (pairs * trials * features_MF.shape[1]))
    idle = 0
    for _ in range(steps):
        drawn = rng.permutation(cohorts)
        two = (drawn[:pairs], drawn[pairs : 2 * pairs])
        positions = [np.floor(rng.random((pairs, trials)) * size_N[side, None]).astype(np.int64) for side in two]
        who = [slots[side[:, None], position] for side, position in zip(two, positions, strict=True)]
        moved_PKF = features_MF[who[1]] - features_MF[who[0]]
        gain_PK = np.zeros((pairs, trials))
        for side, out, into, sign in ((two[0], who[0], who[1], 1), (two[1], who[1], who[0], -1)):
            rest_PK = np.where(seconds_M[out] == top_N2[side, 1, None], top_N2[side, 0, None], top_N2[side, 1, None])
            longest_PK = np.maximum(rest_PK, seconds_M[into])
            size_P = size_N[side].astype(np.float64)
            now_P = cost(sums_NF[side], size_P, top_N2[side, 1])
            gain_PK += now_P[:, None] - cost(sums_NF[side][:, None] + sign * moved_PKF, size_P[:, None], longest_PK)
        best_P = gain_PK.argmax(axis=1)
        rows = np.flatnonzero(gain_PK[np.arange(pairs), best_P] > MIN_GAIN)
        idle = idle + 1 if len(rows) == 0 else 0
        if idle == PATIENCE:
            break
        k = best_P[rows]
        first, second = two[0][rows], two[1][rows]
        slots[first, positions[0][rows, k]] = who[1][rows, k]
        slots[second, positions[1][rows, k]] = who[0][rows, k]
        sums_NF[first] += moved_PKF[rows, k]
        sums_NF[second] -= moved_PKF[rows, k]
        changed = np.concatenate([first, second])
        top_N2[changed] = _slowest_two(slots[changed], seconds_M)
    return by_slot(slots)


def _slowest_two(slots: Index, seconds_M: Floats) -> Floats:
    """The second slowest and the slowest client's seconds in each cohort."""
    seconds = np.where(slots == EMPTY, -np.inf, seconds_M[slots])
    found: Floats = np.partition(seconds, -2, axis=1)[:, -2:]
    return found
