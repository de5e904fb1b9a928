"""When a cohort's training ends: what a stopping rule is, the built-in ones, and the limits that apply with any rule.

Which of a cohort's models becomes the teacher is decided in session.py.
"""

import math
from typing import Any, NamedTuple

from cpfl.settings import Stopping

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
    eval_interval: float = math.inf  # rounds after which a cohort waits until all cohorts are evaluated together

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
    """All cohorts stop together: they wait after every stopping.eval_interval rounds, and joint.py decides."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__(stopping)
        self.eval_interval = stopping.eval_interval


def limit_reached(
    stopping: Stopping,
    max_rounds: int,
    round: int,
    clock: float,
    cpu_seconds: float,
    last: tuple[float, float],
    cpu_budget: float,
) -> str:
    """The limit that ends a cohort after this round; empty: none does.

    A limit stops a cohort before the round that would exceed it, if that costs as much as the `last` one (seconds, CPU
    seconds). Each cohort has a `cpu_budget` of its own, in seconds, so that none waits for another.
    """
    if stopping.max_hours and clock + last[0] > stopping.max_hours * 3600 + ROUNDING:
        return "hours"
    if cpu_seconds + last[1] > cpu_budget + ROUNDING:
        return "cpu hours"
    return "max rounds" if round >= max_rounds else ""
