"""Assignment by what clients hold and how fast they are: by labels, by the seconds of their rounds, or by both.

Most rules begin with a greedy assignment and improve it by a local search that swaps clients.

Axes: M clients, N cohorts, S slots of a cohort, C classes; in the search F features, P pairs of cohorts, K swaps that a
pair tries.
"""

from collections.abc import Callable

import numpy as np

from cpfl.cohorts.base import EMPTY, ClientView, CohortAssignment, Floats, Index, by_slot, fill_slots, sizes, skews
from cpfl.errors import SettingError
from cpfl.randomness import stream
from cpfl.registry import require
from cpfl.settings.types import MOST

Cost = Callable[[Floats, Floats, Floats], Floats]
"""(sums of features (…, F), sizes (…), longest (…)) -> cost of each cohort (…)."""

TRIALS = 4096  # swaps in one step, of all pairs
BUDGET = 2**24  # features that are compared in all: about a second
PATIENCE = 64  # steps without a swap after which the search ends
MIN_GAIN = 1e-12
BAND = 1024  # cohorts that clients are distributed over at once; with more, each band gets its clients at random


class LabelBalanced(CohortAssignment):
    """Cohorts whose label distributions are as near the whole population's as swaps bring them."""

    needs = ("labels",)

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """A greedy distribution, improved by swaps."""
        counts = clients.labels.astype(np.float64)
        whole_C = counts.sum(axis=0)
        slots = distribute(counts, cohorts, clients.shuffled())
        return improve(clients, slots, counts, lambda sums, size, longest: skews(sums, whole_C))


class LabelClustered(CohortAssignment):
    """Cohorts of clients with similar label distributions: k-means with clusters of equal size."""

    needs = ("labels",)

    @property
    def reveals(self) -> str:
        """Clients learn something too."""
        return f"{super().reveals[:-1]}; and clients of a cohort know that they hold similar labels."

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """Repeated bisection along the principal component, improved by swaps."""
        counts = clients.labels.astype(np.float64)
        share_MC = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        size_N = sizes(clients.count, cohorts)
        slots = fill_slots(_bisect(share_MC, clients.shuffled(), size_N), size_N)
        # Squared distances to the cohort's mean, less the clients' own squares, which no swap changes.
        return improve(clients, slots, share_MC, lambda sums, size, longest: -(np.square(sums).sum(axis=-1) / size))


class BySpeed(CohortAssignment):
    """The fastest clients in the first cohort, the slowest in the last; equal ones in random order.

    No other assignment of these sizes has a shorter sum of rounds.
    """

    needs = ("seconds",)

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """Sorted by seconds, cohort after cohort."""
        return by_slot(_sorted_slots(clients, cohorts))


class MultiObjective(CohortAssignment):
    """Low label skew and short rounds at once.

    The cost is `skew_weight` times the cohorts' mean skew plus `speed_weight` times their mean round, the latter as a
    share of the slowest client's; both lie between 0 and 1.
    """

    needs = ("labels", "seconds")

    def __init__(self, skew_weight: float = 1.0, speed_weight: float = 1.0) -> None:
        require("skew_weight", skew_weight, 0 <= skew_weight <= MOST, f"0 or more, at most {MOST:,}")
        require("speed_weight", speed_weight, 0 <= speed_weight <= MOST, f"0 or more, at most {MOST:,}")
        if not (skew_weight or speed_weight):
            raise SettingError(
                "assignment.rule = 'multi-objective' needs rule_args.skew_weight or rule_args.speed_weight above 0"
            )
        self.skew_weight, self.speed_weight = skew_weight, speed_weight

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """The best of several starts, improved by swaps.

        A start has bands of cohorts with similar speeds, and labels are balanced within a band. One band is the
        balanced assignment, a band for each cohort the assignment by speed.
        """
        counts, seconds = clients.labels.astype(np.float64), clients.seconds
        whole_C, slowest = counts.sum(axis=0), seconds.max()

        def cost(sums: Floats, size: Floats, longest: Floats) -> Floats:
            both: Floats = self.skew_weight * skews(sums, whole_C) + self.speed_weight * longest / slowest
            return both

        def total(slots: Index) -> float:
            sums = np.array([counts[row[row != EMPTY]].sum(axis=0) for row in slots])
            longest = np.where(slots == EMPTY, 0.0, seconds[slots]).max(axis=1)
            return float(cost(sums, sums, longest).sum())

        by_speed = _sorted_slots(clients, cohorts)
        widths = sorted({min(4**k, cohorts) for k in range(cohorts.bit_length())})
        starts = [by_speed if width == 1 else distribute_in_bands(counts, by_speed, width) for width in widths]
        return improve(clients, min(starts, key=total), counts, cost, seconds)


def _sorted_slots(clients: ClientView, cohorts: int) -> Index:
    order = clients.shuffled()
    return fill_slots(order[np.argsort(clients.seconds[order], kind="stable")], sizes(clients.count, cohorts))


def distribute(counts_MC: Floats, cohorts: int, order: Index) -> Index:
    """Slots of cohorts that each get about one n-th of every label.

    The largest client comes first; of equal ones, the first in the given order. Each takes a free slot in the cohort
    that lacks most of what it holds.
    """
    size_N = sizes(len(order), cohorts)
    if cohorts > BAND:
        return distribute_in_bands(counts_MC, fill_slots(order, size_N), BAND)
    lack_NC = np.tile(counts_MC[order].sum(axis=0) / cohorts, (cohorts, 1))
    free_N, closed_N = size_N.copy(), np.zeros(cohorts)
    cohort_of = np.empty(len(order), np.int64)
    largest = np.argsort(-counts_MC[order].sum(axis=1), kind="stable")
    for position in largest.tolist():
        client_C = counts_MC[order[position]]
        chosen = int((lack_NC @ client_C + closed_N).argmax())  # of the squared distance, what the choice can change
        lack_NC[chosen] -= client_C
        free_N[chosen] -= 1
        if not free_N[chosen]:
            closed_N[chosen] = -np.inf
        cohort_of[position] = chosen
    return fill_slots(order[np.argsort(cohort_of, kind="stable")], size_N)


def distribute_in_bands(counts_MC: Floats, slots_NS: Index, width: int) -> Index:
    """Distribute the clients of each band of `width` cohorts over the cohorts of that band."""
    slots = np.full_like(slots_NS, EMPTY)
    for first in range(0, len(slots), width):
        band = slots_NS[first : first + width]
        among = distribute(counts_MC, len(band), band[band != EMPTY])
        slots[first : first + width, : among.shape[1]] = among
    return slots


def _bisect(share_MC: Floats, order: Index, size_N: Index) -> Index:
    """Split clients in two where they differ most, and again, until each cohort's are neighbours."""
    if len(size_N) == 1:
        return order
    share = share_MC[order]
    centred = share - share.mean(axis=0)
    direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    direction *= np.sign(direction[np.abs(direction).argmax()])  # an eigenvector's sign depends on the library
    ranked = order[np.argsort(np.round(centred @ direction, 9), kind="stable")]
    half = len(size_N) // 2
    left, right = np.split(ranked, [int(size_N[:half].sum())])
    return np.concatenate([_bisect(share_MC, left, size_N[:half]), _bisect(share_MC, right, size_N[half:])])


def improve(
    clients: ClientView, slots_NS: Index, features_MF: Floats, cost: Cost, seconds: Floats | None = None
) -> Index:
    """The cohort of every client after swaps that lower the cost; sizes stay.

    Cohorts are paired at random; each pair tries some random swaps and makes the best one if it lowers the cost. No two
    pairs share a cohort, so all of them swap at once. The cost is a sum over cohorts: a swap changes two terms of it.
    """
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
    return np.partition(seconds, -2, axis=1)[:, -2:]
