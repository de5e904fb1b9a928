"""When enough clients are there at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from cpfl.federation.selection import Cohort
from cpfl.federation.stopping import ROUNDING

TOGETHER = 2 * ROUNDING  # seconds that they must share: the server begins one rounding later
PERIODS = 4  # of the longest week: how long to look where weeks differ in length, and so meet in ever new ways


def together(cohort: Cohort, clients: Sequence[int], wanted: int, clock: float) -> float | None:
    """The first moment, from this one on, at which so many of these clients are there at once; None: there is none."""
    last, here = clock + horizon(cohort, clients), 0
    events = [(cohort.back(client, clock), True, client) for client in clients]  # who leaves goes before who comes
    heapify(events)
    while events and events[0][0] <= last:
        now, comes, client = heappop(events)
        here += 1 if comes else -1
        leaves = cohort.until(client, now) if comes else now + TOGETHER
        if comes and leaves > now + TOGETHER:
            if here >= wanted:
                return now
            heappush(events, (leaves - TOGETHER, False, client))
        else:
            here -= comes  # for a moment only
            heappush(events, (cohort.back(client, leaves), True, client))
    return None


def horizon(cohort: Cohort, clients: Iterable[int]) -> float:
    """How many seconds tell whether clients are ever there at once: weeks of one length begin anew together."""
    there = cohort.fleet.availability
    periods = {there.week(client).period for client in clients} if there else set()
    return max(periods, default=0.0) * (1 if len(periods) == 1 else PERIODS)
