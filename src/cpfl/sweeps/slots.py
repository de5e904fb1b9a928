"""How many slots of a cluster each run of a sweep gets, and which runs share a slot.

A slot is a share of a GPU, or the cores of a node. Twelve equal runs on eight slots, one each, leave half of the slots
idle half of the time. If four of the runs are spread over two slots each and start first, none is idle.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpfl.settings import Experiment

MAX_TIME = 0.95  # of the time with one slot each: several processes for a run have a cost of their own
MAX_WAVES = 4  # of runs with several slots: with many more runs than slots, the end matters little

Runs = Mapping[Any, Experiment]  # by name or path


def allocate(runs: Runs, total: int, cores: int = 1) -> dict[Any, int]:
    """Slots in proportion to the work, from one to the number of cohorts; more for some runs if that saves time.

    Those are the most costly runs: as many as are one too many, all, or as fill the cluster a few times. Where a slot
    has several cores, one run fills it. Then a run gets several only if there are fewer runs than slots.
    """
    if cores > 1 and len(runs) >= total:
        return dict.fromkeys(runs, 1)
    costs = {name: cost(experiment) for name, experiment in runs.items()}
    whole = sum(costs.values())
    shares = {name: int(total * costs[name] / whole + 1e-9) for name in runs}

    def at_least(size: int, names: Iterable[Any]) -> dict[Any, int]:
        return {name: max(1, min(runs[name].cohorts // cores, total, max(size, shares[name]))) for name in names}

    plain = at_least(1, runs)
    if cores > 1:
        return plain
    divisible = sorted((name for name in runs if runs[name].cohorts > 1), key=lambda name: -costs[name])
    candidates = [plain]
    for size in (2**power for power in range(1, total.bit_length())):
        counts = {len(runs) % total, len(divisible), *(total // size * wave for wave in range(1, MAX_WAVES + 1))}
        candidates += [plain | at_least(size, divisible[:count]) for count in sorted(counts)]
    best = min(candidates, key=lambda slots: duration(runs, slots, total))
    return best if duration(runs, best, total) < MAX_TIME * duration(runs, plain, total) else plain


def order(runs: Runs, slots: Mapping[Any, int]) -> list[Any]:
    """Most slots first, then the largest cost; equal ones as in the sweep."""
    return sorted(runs, key=lambda name: (-slots[name], -cost(runs[name])))


def distribute(runs: Runs, cores: Sequence[int]) -> list[list[Any]]:
    """Which runs each slot of so many cores makes: the costliest first, each where it would end soonest."""
    queues: list[list[Any]] = [[] for _ in cores]
    loads = [0.0] * len(cores)
    for name in sorted(runs, key=lambda name: -cost(runs[name])):
        own = cost(runs[name])
        slot = min(range(len(cores)), key=lambda slot: ((loads[slot] + own) / cores[slot], slot))
        queues[slot].append(name)
        loads[slot] += own
    return queues


def cost(experiment: Experiment) -> float:
    """An estimate of a run's work from its settings: the maximum of rounds times the work of a round."""
    federation = experiment.federation
    rounds = experiment.stopping.rounds if experiment.stopping.rule == "rounds" else experiment.max_rounds
    part = federation.participants / experiment.clients if federation.participants else federation.participation
    each = federation.local_steps * federation.batch_size * experiment.clients if federation.local_steps else 1e4
    return float(rounds * part * each * max(1, federation.local_epochs))


def duration(runs: Runs, slots: Mapping[Any, int], total: int) -> float:
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
