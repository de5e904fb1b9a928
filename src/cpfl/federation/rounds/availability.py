"""When enough clients are available at the same time."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from cpfl.federation.selection.base import CohortInfo
from cpfl.federation.stopping.rules import ROUNDING

OVERLAP = 2 * ROUNDING  # seconds that they must share: the server begins one rounding later
PERIODS = 4  # of the longest schedule: how long to search where periods differ in length


def first_time_together(cohort: CohortInfo, clients: Sequence[int], wanted: int, clock: float) -> float | None:
    """The first moment from `clock` on at which so many of these clients are available at once; None: there is none."""
    last, here = clock + horizon(cohort, clients), 0
    events = [(cohort.available_from(client, clock), True, client) for client in clients]  # departures sort first
    heapify(events)
    while events and events[0][0] <= last:
        now, comes, client = heappop(events)
        here += 1 if comes else -1
        leaves = cohort.available_until(client, now) if comes else now + OVERLAP
        if comes and leaves > now + OVERLAP:
            if here >= wanted:
                return now
            heappush(events, (leaves - OVERLAP, False, client))
        else:
            here -= comes  # for a moment only
            heappush(events, (cohort.available_from(client, leaves), True, client))
    return None


def horizon(cohort: CohortInfo, clients: Iterable[int]) -> float:
    """How many seconds to search: schedules of one period repeat together."""
    availability = cohort.fleet.availability
    periods = {availability.schedule(client).period for client in clients} if availability else set()
    return max(periods, default=0.0) * (1 if len(periods) == 1 else PERIODS)
