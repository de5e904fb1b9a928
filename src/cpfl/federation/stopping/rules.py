"""The built-in stopping rules of single cohorts, and the limits that apply with any rule."""

from cpfl.federation.stopping.base import Decision, StoppingRule
from cpfl.settings import Stopping

ROUNDING = 1e-6  # seconds; a moment that is reached exactly must not be missed by a float's last digit


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
