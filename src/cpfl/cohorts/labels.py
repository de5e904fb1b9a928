"""Assignment by labels: cohorts whose labels mirror the whole population's, or cohorts of similar clients.

Axes: M clients, N cohorts, S slots of a cohort, C classes.
"""

import numpy as np

from cpfl.cohorts.base import EMPTY, ClientView, CohortAssignment, Floats, Index, by_slot, fill_slots, sizes
from cpfl.cohorts.measures import skews
from cpfl.cohorts.swap_search import improve
from cpfl.randomness import stream

BAND = 1024  # cohorts that clients are distributed over at once; with more, each band gets its clients at random


class LabelBalanced(CohortAssignment):
    """Cohorts whose label distributions are as near the whole population's as swaps bring them."""

    needs = ("labels",)

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """A greedy distribution, improved by swaps."""
        assert clients.labels is not None
        counts = clients.labels.astype(np.float64)
        whole_C = counts.sum(axis=0)
        slots = distribute(counts, cohorts, clients.shuffled())
        rng = stream(clients.seed, "swaps")
        return by_slot(
            improve(slots, counts, np.zeros(clients.count), lambda sums, size, longest: skews(sums, whole_C), rng)
        )


class LabelClustered(CohortAssignment):
    """Cohorts of clients with similar label distributions: k-means with clusters of equal size."""

    needs = ("labels",)

    @property
    def reveals(self) -> str:
        """Clients learn something too."""
        return f"{super().reveals[:-1]}; and clients of a cohort know that they hold similar labels."

    def assign(self, clients: ClientView, cohorts: int) -> Index:
        """Repeated bisection along the principal component, improved by swaps."""
        assert clients.labels is not None
        counts = clients.labels.astype(np.float64)
        share_MC = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        size_N = sizes(clients.count, cohorts)
        slots = fill_slots(_bisect(share_MC, clients.shuffled(), size_N), size_N)

        def spread(sums: Floats, size: Floats, longest: Floats) -> Floats:
            # Squared distances to the cohort's mean, less the clients' own squares, which no swap changes.
            cost: Floats = -(np.square(sums).sum(axis=-1) / size)
            return cost

        return by_slot(improve(slots, share_MC, np.zeros(clients.count), spread, stream(clients.seed, "swaps")))


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
