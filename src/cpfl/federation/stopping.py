"""When training ends: what a stopping rule is, the built-in ones, and the limits that apply with any rule.

With the rule `joint` cohorts train in phases. After each phase they wait, and all are evaluated together as the
ensemble that would be distilled, or as the merged model of a meeting. They continue while twice the work would still
gain enough. Work is counted in CPU hours or hours, gain in points of the evaluation. "Twice" makes the rule free of
scale: the same for ten CPU hours as for ten thousand. Which of a cohort's models becomes the teacher is decided in
cohort_training.py.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpfl.devices.fleet import Fleet
from cpfl.federation.messages import Cost
from cpfl.settings import Stopping

FEWEST = 4  # evaluations for a line: one through fewer says little
Point = tuple[float, float]  # CPU hours or hours spent so far, the accuracy in per cent
ROUNDING = 1e-6  # seconds; a moment that is reached exactly must not be missed by a float's last digit


class Decision(NamedTuple):
    """What a rule says of a closed round."""

    moving_average: float | None  # the value that the rule follows; None: there is none yet
    best: bool  # the model of this round is the best so far: stopping.keep = "best" keeps it
    stop: str = ""  # why training ends with this round; empty: it continues


class StoppingRule:
    """Decides after every round of a cohort whether its training ends.

    This one follows a moving average of the validation loss over stopping.window rounds and never stops: limits such as
    stopping.max_hours apply with any rule. Subclass it, write `update`, and name it `module:Class` in stopping.rule.
    Keyword arguments after `stopping` are stopping.rule_args.
    """

    last_round: float = math.inf  # the last round there can be, if it is known beforehand
    # Rounds after which a cohort waits until all are evaluated together; cohorts that meet are evaluated there.
    eval_interval: float = math.inf

    def __init__(self, stopping: Stopping) -> None:
        self.settings = stopping
        self.best_round = 0  # with the lowest moving average; 0: none yet
        self._losses: list[float] = []
        self._lowest = math.inf

    def update(self, round: int, loss: float | None, clock: float, cpu_seconds: float) -> Decision:
        """Take in a closed round.

        Parameters
        ----------
        round
            Its number, counted from 1.
        loss
            The mean validation loss over the clients that reported one; None: no client did.
        clock, cpu_seconds
            The cohort's virtual seconds and CPU seconds after the round.
        """
        if loss is not None:
            self._losses = [*self._losses, loss][-self.settings.window :]
        if not self._losses:
            return Decision(None, best=False)
        average = sum(self._losses) / len(self._losses)
        best = average < self._lowest
        if best:
            self._lowest, self.best_round = average, round
        return Decision(average, best)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain numbers, strings, lists and dictionaries with strings as keys."""
        lowest = None if math.isinf(self._lowest) else self._lowest
        return {"losses": self._losses, "lowest": lowest, "best_round": self.best_round}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._losses, self.best_round = list(state["losses"]), state["best_round"]
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]


class Plateau(StoppingRule):
    """The paper's rule: stop after stopping.patience rounds without a new minimum of the moving average."""

    def update(self, round: int, loss: float | None, clock: float, cpu_seconds: float) -> Decision:
        decision = super().update(round, loss, clock, cpu_seconds)
        if round - self.best_round < self.settings.patience:
            return decision
        return decision._replace(stop="plateau" if self.best_round else "no validation signal")


class FixedRounds(StoppingRule):
    """Exactly stopping.rounds rounds."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__(stopping)
        self.last_round = stopping.rounds

    def update(self, round: int, loss: float | None, clock: float, cpu_seconds: float) -> Decision:
        decision = super().update(round, loss, clock, cpu_seconds)
        return decision._replace(stop="rounds") if round >= self.last_round else decision


class Joint(StoppingRule):
    """All cohorts stop together: they wait after every stopping.eval_interval rounds, and `converged` decides."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__(stopping)
        self.eval_interval = stopping.eval_interval


def limit_reached(
    stopping: Stopping,
    max_rounds: int,
    round: int,
    next_clock: float,
    next_cpu_seconds: float,
    cpu_budget: float,
    next_bytes: float = 0.0,
    byte_budget: float = math.inf,
) -> str:
    """The limit that ends a cohort after this round; empty: none does.

    A limit stops a cohort before the round that would exceed it. `next_clock`, `next_cpu_seconds` and `next_bytes` are
    the cohort's after another round that costs as much as this one. Each cohort has a `cpu_budget` in seconds and a
    `byte_budget` of its own, so that none waits for another.
    """
    if stopping.max_hours and next_clock > stopping.max_hours * 3600 + ROUNDING:
        return "hours"
    if next_cpu_seconds > cpu_budget + ROUNDING:
        return "cpu hours"
    if next_bytes > byte_budget + ROUNDING:
        return "traffic"
    return "max rounds" if round >= max_rounds else ""


@dataclass(frozen=True)
class Evaluation:
    """One line of a federation's evaluations."""

    phase: int  # counted from 1
    round: int  # after which the cohorts waited; at a meeting the largest of `rounds`
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
    global_bytes: int = 0  # of `bytes`, between the cohort servers and the global one
    rounds: list[int] = field(default_factory=list)  # after which each of `cohorts` waited, at a meeting
    byte_budgets: list[float] = field(default_factory=list)  # bytes each of `cohorts` may send in all, if limited


class Share(NamedTuple):
    """A cohort's share of an evaluation: what it pays, and what it may spend in all from then on."""

    cpu_seconds: float
    bytes: float
    cpu_budget: float = math.inf
    byte_budget: float = math.inf


def gain_per_doubling(points: Sequence[Point], window: int) -> float | None:
    """Points that twice the work gains: the slope of the line of least squares through the last `window` evaluations
    over log2(work); None while there are too few of them."""
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
    left: float, price: float, eval_interval: float, spent: Sequence[float], costs: Sequence[float]
) -> list[float]:
    """What each cohort may spend in all, what it has spent included.

    The CPU seconds or bytes that are left are shared by what a round costs each cohort, so that all have the same
    number of rounds. The price of the next evaluation is kept back if a whole phase of `eval_interval` rounds leaves
    it: otherwise there will be none.
    """
    whole = math.fsum(costs)
    if not whole:  # cohorts of one client send nothing
        return [before + max(0.0, left) / len(costs) for before in spent]
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
