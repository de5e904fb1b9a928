"""Assignment by the seconds that a client's round takes, alone or weighed against label skew.

Axes: M clients, N cohorts, S slots of a cohort, C classes.
"""

import numpy as np

from cpfl.cohorts.base import EMPTY, ClientView, CohortAssignment, Floats, Index, by_slot, fill_slots, sizes
from cpfl.cohorts.labels import distribute_in_bands
from cpfl.cohorts.measures import skews
from cpfl.cohorts.swap_search import improve
from cpfl.errors import SettingError
from cpfl.randomness import stream


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
        assert clients.labels is not None
        assert clients.seconds is not None
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
        return by_slot(improve(min(starts, key=total), counts, seconds, cost, stream(clients.seed, "swaps")))


def _sorted_slots(clients: ClientView, cohorts: int) -> Index:
    assert clients.seconds is not None
    order = clients.shuffled()
    return fill_slots(order[np.argsort(clients.seconds[order], kind="stable")], sizes(clients.count, cohorts))
