"""When a cohort has converged: the paper's plateau rule, and the limits that go with any rule."""

from __future__ import annotations

import math
from typing import Any

from cpfl.experiment import Stopping

ROUNDING = 1e-6  # seconds; a moment that is reached exactly must not be missed by a float's last digit


class Plateau:
    """Follows a moving average of the validation loss and remembers when it last made a new minimum."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._values: list[float] = []
        self._best = math.inf
        self.best_round = 0

    def judge(self, round: int, value: float | None) -> tuple[float | None, bool]:
        """The moving average with this round's value, and whether it is a new minimum."""
        if value is not None:
            self._values = [*self._values, value][-self._window :]
        if not self._values:
            return None, False
        average = sum(self._values) / len(self._values)
        if average < self._best:
            self._best, self.best_round = average, round
            return average, True
        return average, False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        best = None if math.isinf(self._best) else self._best
        return {"values": self._values, "best": best, "best_round": self.best_round}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._values, self.best_round = list(state["values"]), state["best_round"]
        self._best = math.inf if state["best"] is None else state["best"]


def reason_to_stop(
    stopping: Stopping,
    max_rounds: int,
    round: int,
    plateau: Plateau,
    clock: float,
    cpu_seconds: float,
    last: tuple[float, float],
    allowed: float,
) -> str:
    """Why the cohort ends after this round; empty: it goes on.

    Limits stop a cohort before the round that, if it cost as much as the `last` one (seconds, CPU seconds), would pass
    them. Of the federation's CPU hours a cohort is `allowed` so many seconds, so that none waits for another.
    """
    if stopping.rule == "plateau" and round - plateau.best_round >= stopping.patience:
        return "plateau" if plateau.best_round else "no validation signal"
    if stopping.rule == "rounds" and round >= stopping.rounds:
        return "rounds"
    if stopping.hours and clock + last[0] > stopping.hours * 3600 + ROUNDING:
        return "hours"
    if cpu_seconds + last[1] > allowed + ROUNDING:
        return "cpu hours"
    return "max rounds" if round >= max_rounds else ""
