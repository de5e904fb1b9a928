"""When the whole federation has converged: the rule `joint`, sans-IO.

Cohorts train in legs and then wait, so that all of them can be judged together by what they would be distilled into.
They go on while twice the work would still gain enough: work is counted in CPU hours, gain in points of the judgement,
and "twice" makes the rule free of scale, the same for ten CPU hours as for ten thousand.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.devices import Fleet

FEWEST = 4  # judgements for a line: one through fewer says little
Point = tuple[float, float]  # CPU hours spent so far, the judgement in per cent


@dataclass(frozen=True)
class Cost:
    """What a judgement takes: virtual seconds until the slowest has answered, CPU seconds and bytes of all."""

    seconds: float
    cpu_seconds: float
    bytes: int


@dataclass(frozen=True)
class Judgement:
    """One line of a federation's judgements."""

    leg: int  # counted from 1
    round: int  # after which the cohorts waited
    cohorts: list[int]  # that waited; the others had stopped before, and were judged as they were
    clock: float  # virtual seconds at which it was over: the slowest cohort's, and the judgement's own
    seconds: float  # of its own
    cpu_seconds: float
    bytes: int
    cpu_hours: float  # of the whole federation until then, with this and all earlier judgements
    value: float  # in per cent
    loss: float | None
    slope: float | None  # points that twice the work gains; None: too few judgements to say
    decision: str  # on or stop
    allowed: list[float] = field(default_factory=list)  # CPU seconds each of `cohorts` may spend in all, if limited

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)


def slope(points: Sequence[Point], legs: int) -> float | None:
    """Points that twice the work gains, by the line of least squares through the last `legs` judgements over
    log2(CPU hours); None while there are too few of them."""
    if len(points) < FEWEST:
        return None
    last = points[-legs:]
    return statistics.linear_regression([math.log2(spent) for spent, _ in last], [value for _, value in last]).slope


def enough(points: Sequence[Point], gain: float, legs: int) -> bool:
    """Whether to stop: twice the work would gain less than `gain` points, and no more than a leg ago it would have.

    Learning may begin slowly, with a flat stretch before the rise; there the gain is small too, but it grows. With a
    gain of 0 only limits end it: whoever has a budget to spend wants all of it spent, and judgements are noisy.
    """
    now, before = slope(points, legs), slope(points[:-1], legs)
    return gain > 0 and now is not None and before is not None and now < gain and now <= before


def shared_out(left: float, price: float, every: int, spent: Sequence[float], costs: Sequence[float]) -> list[float]:
    """What each cohort may spend in all: the CPU seconds that are left, by what a round costs it, so that all have the
    same number of rounds; what they have spent included. The next judgement's price is kept back if a whole leg of
    `every` rounds leaves it: otherwise there will be none."""
    whole = math.fsum(costs)
    seconds = left - price if left - price >= every * whole else max(0.0, left)
    return [before + seconds * cost / whole for before, cost in zip(spent, costs, strict=True)]


def replayed(points: Sequence[Point], gain: float, legs: int) -> int | None:
    """The judgement (counted from 1) after which the rule would have stopped, of those a finished run can tell."""
    return next((k for k in range(1, len(points) + 1) if enough(points[:k], gain, legs)), None)


def asking_clients(
    fleet: Fleet, clients: NDArray[np.int64], samples: NDArray[np.int64], n: int, sent: NDArray[np.int64]
) -> Cost:
    """Each of these clients is sent so many bytes of models that it lacks, and runs all n models on so many samples of
    its own. A forward pass is what the device trace measures; three numbers back weigh nothing."""
    computing = n * samples * fleet.compute_ms[clients] / 1000
    down = sent / (fleet.network_kbps[clients] * 1024 / 8)
    return Cost(float((computing + down).max()), math.fsum(computing.tolist()), int(sent.sum()))


def asking_servers(sent: int) -> Cost:
    """Every cohort's server sends its model to the global one, so many bytes in all; servers are never the bottleneck,
    and their own work is not counted, as that of the distillation is not."""
    return Cost(0.0, 0.0, sent)
