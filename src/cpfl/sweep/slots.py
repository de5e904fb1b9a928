"""How many slots of a cluster each run of a sweep gets, so that the sweep ends soonest.

A slot is a core or a share of a GPU; a run keeps its slots until it ends. Twelve equal runs on eight slots, one each,
leave half of the slots idle half of the time. If four of the runs start first, on two slots each, none is idle.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from typing import Any

from cpfl.settings import Experiment

MAX_TIME = 0.95  # of the time with one slot each: several processes for a run have a cost of their own
MAX_WAVES = 4  # of runs with several slots: with many more runs than slots, the end matters little

Runs = Mapping[Any, Experiment]  # by name or path
Slots = dict[Any, int]


def allocate(runs: Runs, total: int) -> Slots:
    """Slots in proportion to the work, from one to the number of cohorts; more for some runs if that saves time."""
    costs = {name: cost(experiment) for name, experiment in runs.items()}
    whole = sum(costs.values())
    plain = {name: _limited(runs[name], total, int(total * costs[name] / whole + 1e-9)) for name in runs}
    best = min(_candidates(runs, plain, total), key=lambda slots: duration(runs, slots, total), default=plain)
    return best if duration(runs, best, total) < MAX_TIME * duration(runs, plain, total) else plain


def order(runs: Runs, slots: Slots) -> list[Any]:
    """Most slots first, then the largest cost; equal ones as in the sweep."""
    return sorted(runs, key=lambda name: (-slots[name], -cost(runs[name])))


def cost(experiment: Experiment) -> float:
    """An estimate of a run's work from its settings: the maximum of rounds times the work of a round."""
    federation = experiment.federation
    rounds = experiment.stopping.rounds if experiment.stopping.rule == "rounds" else experiment.max_rounds
    part = federation.participants / experiment.clients if federation.participants else federation.participation
    each = federation.local_steps * federation.batch_size * experiment.clients if federation.local_steps else 1e4
    return float(rounds * part * each * max(1, federation.local_epochs))


def duration(runs: Runs, slots: Slots, total: int) -> float:
    """The time of all runs if each takes its estimated cost; a cohort is never split."""
    waiting: dict[int, deque[float]] = {}
    for name in order(runs, slots):
        n = runs[name].cohorts
        waiting.setdefault(slots[name], deque()).append(cost(runs[name]) * -(-n // slots[name]) / n)
    now, free = 0.0, total
    running: list[tuple[float, int]] = []
    while running or any(waiting.values()):
        for size, times in waiting.items():  # most slots first
            while times and size <= free:
                heapq.heappush(running, (now + times.popleft(), size))
                free -= size
        now, size = heapq.heappop(running)
        free += size
    return now


def _candidates(runs: Runs, plain: Slots, total: int) -> list[Slots]:
    """Several slots for the most costly runs: for as many as are one too many, or as fill the cluster a few times."""
    able = sorted((name for name in runs if runs[name].cohorts > 1), key=lambda name: -cost(runs[name]))
    found, size = [], 2
    while size <= total:
        counts = {len(runs) % total, len(able), *(total // size * wave for wave in range(1, MAX_WAVES + 1))}
        for count in sorted(count for count in counts if 0 < count <= len(able)):
            more = {name: max(plain[name], _limited(runs[name], total, size)) for name in able[:count]}
            found.append({**plain, **more})
        size *= 2
    return found


def _limited(experiment: Experiment, total: int, wanted: int) -> int:
    return max(1, min(experiment.cohorts, total, wanted))
