"""Assignment by what clients hold and how fast they are: by labels, by the seconds of their rounds, or by both.

Axes: M clients, N cohorts, S slots of a cohort, C classes.
"""

import numpy as np

from cpfl.cohorts.base import EMPTY, ClientView, CohortAssignment, Floats, Index, by_slot, fill_slots, sizes, skews
from cpfl.cohorts.swap_search import improve
from cpfl.errors import SettingError

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

        def spread(sums: Floats, size: Floats, longest: Floats) -> Floats:
            # Squared distances to the cohort's mean, less the clients' own squares, which no swap changes.
            cost: Floats = -(np.square(sums).sum(axis=-1) / size)
            return cost

        return improve(clients, slots, share_MC, spread)


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
        weights = {"skew_weight": skew_weight, "speed_weight": speed_weight}
        for name, weight in weights.items():
            if not 0 <= weight < np.inf:
                raise SettingError(f"assignment.rule_args.{name} = {weight} is not allowed: 0 or more is needed")
        if not any(weights.values()):
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
