"""Which worker trains which cohorts: the costliest first, each to the worker with the least to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def cost(samples_a_round: float, rounds: int) -> float:
    """What a cohort is expected to cost: what has gone on for long goes on for long, whatever the rule."""
    return samples_a_round * max(1, rounds)


def pack(costs: Mapping[int, float], loads: Sequence[float]) -> list[list[int]]:
    """Cohorts for each worker, beside the loads that the workers have already."""
    found: list[list[int]] = [[] for _ in loads]
    totals = list(loads)
    for cohort in sorted(costs, key=lambda cohort: (-costs[cohort], cohort)):
        worker = min(range(len(totals)), key=lambda worker: (totals[worker], len(found[worker]), worker))
        found[worker].append(cohort)
        totals[worker] += costs[cohort]
    return found


def spoils(held: Sequence[Mapping[int, float]]) -> tuple[int, list[int]] | None:
    """What a worker that has become free takes, and from whom: of the one with the most to do, so many cohorts that
    both then have about the same. Nothing if no worker has two."""
    rich = [worker for worker, costs in enumerate(held) if len(costs) > 1]
    if not rich:
        return None
    worker = max(rich, key=lambda worker: (sum(held[worker].values()), -worker))
    costs = held[worker]
    taken = pack(costs, [0.0, 0.0])[1]  # the costliest stays where it is
    return worker, taken
