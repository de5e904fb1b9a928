"""How many slots of a cluster each run of a sweep gets, so that the sweep is over soonest.

A slot is a core or a share of a GPU, and a run keeps what it was given until it ends. Twelve equal runs on eight slots
would leave half of them idle half of the time; if four of the runs go first, on two slots each, none is idle.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

from cpfl.experiment import Experiment

GAIN = 0.95  # of the time: what wide runs must save, for more than one process has its price
WAVES = 4  # of wide runs that are considered: behind many more runs than slots, the end matters little

Widths = dict[str, int]


def slots(runs: Mapping[str, Experiment], there: int) -> Widths:
    """Each run's part of all the work, at least one slot, at most one for each cohort; more for some if that helps."""
    costs = {name: cost(experiment) for name, experiment in runs.items()}
    total = sum(costs.values())
    plain = {name: _within(runs[name], there, int(there * costs[name] / total + 1e-9)) for name in runs}
    best, soonest = plain, GAIN * length(runs, plain, there)
    for wide in _wider(runs, plain, there):
        time = length(runs, wide, there)
        if time < soonest:
            best, soonest = wide, time
    return best


def order(runs: Mapping[str, Experiment], widths: Widths) -> list[str]:
    """The widest first, then the costliest; of equals, as the sweep has them."""
    return sorted(runs, key=lambda name: (-widths[name], -cost(runs[name])))


def cost(experiment: Experiment) -> float:
    """What can be known of a run's work before it is opened: rounds at most, times what a round takes."""
    federation = experiment.federation
    rounds = experiment.stopping.rounds if experiment.stopping.rule == "rounds" else experiment.max_rounds
    part = federation.participants / experiment.clients if federation.participants else federation.participation
    each = federation.local_steps * federation.batch_size * experiment.clients if federation.local_steps else 1e4
    return float(rounds * part * each * max(1, federation.local_epochs))


def length(runs: Mapping[str, Experiment], widths: Widths, there: int) -> float:
    """When all would be over if each took what it is expected to cost; a cohort is never split."""
    waiting: dict[int, deque[float]] = {}
    for name in order(runs, widths):
        n = runs[name].cohorts
        waiting.setdefault(widths[name], deque()).append(cost(runs[name]) * -(-n // widths[name]) / n)
    now, free = 0.0, there
    going: list[tuple[float, int]] = []
    while going or any(waiting.values()):
        for width, times in waiting.items():  # the widest first
            while times and width <= free:
                heapq.heappush(going, (now + times.popleft(), width))
                free -= width
        now, width = heapq.heappop(going)
        free += width
    return now


def _wider(runs: Mapping[str, Experiment], plain: Widths, there: int) -> list[Widths]:
    """The costliest runs on several slots: as many as are one too many, or as fill the cluster once or a few times."""
    able = sorted((name for name in runs if runs[name].cohorts > 1), key=lambda name: -cost(runs[name]))
    found, width = [], 2
    while width <= there:
        full = there // width
        counts = {len(runs) % there, len(able), *(full * wave for wave in range(1, WAVES + 1))}
        for count in sorted(count for count in counts if 0 < count <= len(able)):
            more = {name: max(plain[name], _within(runs[name], there, width)) for name in able[:count]}
            found.append({**plain, **more})
        width *= 2
    return found


def _within(experiment: Experiment, there: int, wanted: int) -> int:
    return max(1, min(experiment.cohorts, there, wanted))
