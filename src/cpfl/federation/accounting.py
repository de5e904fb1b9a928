"""What a round that went to plan took: its length, CPU seconds and bytes, measured or as the fleet says."""

from __future__ import annotations

from cpfl.federation.reports import Outcome
from cpfl.federation.round_plan import Timing, Waste
from cpfl.federation.selection import Cohort


def timing(cohort: Cohort, outcome: Outcome) -> Timing:
    """Everybody's results are waited for."""
    results = outcome.results
    computing = {r.client: cohort.computing(r.client, r.steps) if r.computing is None else r.computing for r in results}
    lasting = {
        r.client: computing[r.client] + cohort.transferring(r.client) if r.lasting is None else r.lasting
        for r in results
    }
    slowest = max(lasting, key=lambda client: lasting[client])
    seconds = lasting[slowest] if outcome.seconds is None else outcome.seconds
    sent = 2 * cohort.sent_bytes * len(results) if outcome.bytes is None else outcome.bytes
    return Timing(seconds, slowest, sum(computing.values()), sent, Waste(), 0)
