"""When the whole federation has converged: the rule `joint`, sans-IO.

Cohorts train in phases. After each phase they wait, and all are evaluated together as the ensemble that would be
distilled. They continue while twice the work would still gain enough. Work is counted in CPU hours, gain in points of
the evaluation. "Twice" makes the rule free of scale: the same for ten CPU hours as for ten thousand.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpfl.devices.fleet import Fleet

FEWEST = 4  # evaluations for a line: one through fewer says little
Point = tuple[float, float]  # CPU hours spent so far, the accuracy in per cent


@dataclass(frozen=True)
class Cost:
    """What an evaluation takes: virtual seconds until the slowest client has answered, CPU seconds and bytes of all."""

    seconds: float
    cpu_seconds: float
    bytes: int


@dataclass(frozen=True)
class Evaluation:
    """One line of a federation's evaluations."""

    phase: int  # counted from 1
    round: int  # after which the cohorts waited
    cohorts: list[int]  # that waited; the others had stopped before, and were evaluated as they were
    clock: float  # virtual seconds at its end: the slowest cohort's, and the evaluation's own
    seconds: float  # of its own
    cpu_seconds: float
    bytes: int
    cpu_hours: float  # of the whole federation until then, with this and all earlier evaluations
    accuracy: float  # in per cent
    loss: float | None
    gain_per_doubling: float | None  # points that twice the work gains; None: too few evaluations to say
    decision: str  # continue or stop
    cpu_budgets: list[float] = field(default_factory=list)  # CPU seconds each of `cohorts` may spend in all, if limited


def gain_per_doubling(points: Sequence[Point], window: int) -> float | None:
    """Points that twice the work gains: the slope of the line of least squares through the last `window` evaluations
    over log2(CPU hours); None while there are too few of them."""
    if len(points) < FEWEST:
        return None
    last = points[-window:]
    return statistics.linear_regression([math.log2(spent) for spent, _ in last], [value for _, value in last]).slope


def converged(points: Sequence[Point], min_gain: float, window: int) -> bool:
    """Whether to stop: twice the work would gain less than `min_gain` points, and not more than one phase ago.

    Learning may begin slowly, with a flat stretch before the rise; there the gain is small too, but it grows. With a
    minimum of 0 only limits stop: whoever has a budget to spend wants all of it spent, and evaluations are noisy.
    """
    now, before = gain_per_doubling(points, window), gain_per_doubling(points[:-1], window)
    return min_gain > 0 and now is not None and before is not None and now < min_gain and now <= before


def share_budget(
    left: float, price: float, eval_interval: int, spent: Sequence[float], costs: Sequence[float]
) -> list[float]:
    """What each cohort may spend in all, what it has spent included.

    The CPU seconds that are left are shared by what a round costs each cohort, so that all have the same number of
    rounds. The price of the next evaluation is kept back if a whole phase of `eval_interval` rounds leaves it:
    otherwise there will be none.
    """
    whole = math.fsum(costs)
    seconds = left - price if left - price >= eval_interval * whole else max(0.0, left)
    return [before + seconds * cost / whole for before, cost in zip(spent, costs, strict=True)]


def client_evaluation_cost(
    fleet: Fleet, clients: NDArray[np.int64], samples: NDArray[np.int64], n: int, sent: NDArray[np.int64]
) -> Cost:
    """Each of these clients receives so many bytes of models that it lacks, and runs all n models on so many samples of
    its own. A forward pass is what the device trace measures; the traffic of three numbers back is not counted."""
    computing = n * samples * fleet.compute_ms[clients] / 1000
    down = sent / (fleet.network_kbps[clients] * 1024 / 8)
    return Cost(float((computing + down).max()), math.fsum(computing.tolist()), int(sent.sum()))


def server_evaluation_cost(sent: int) -> Cost:
    """Every cohort's server sends its model to the global one, so many bytes in all. Servers are never the bottleneck,
    and their own work is not counted, as that of the distillation is not."""
    return Cost(0.0, 0.0, sent)
