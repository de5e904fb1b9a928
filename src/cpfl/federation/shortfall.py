"""Why a round brought too few results, attempt after attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cpfl.federation.fates import Fate


class Shortfall:
    """Counts what kept attempts at a round from bringing enough results."""

    def __init__(self, minimum: int, selection: str) -> None:
        self._minimum, self._selection = minimum, selection
        self._times = Counter[str]()

    def add(self, arrived: Sequence[Fate], others: Sequence[Fate]) -> None:
        """One more attempt, and what became of those who were asked."""
        self._times["few"] += len(arrived) + len(others) < self._minimum
        self._times.update("late" if fate.arrives else "crashed" if fate.crashed else "left" for fate in others)

    def __str__(self) -> str:
        told = {
            "left": "clients left {} times (devices.availability)",
            "crashed": "clients crashed {} times (devices.crash_rate)",
            "late": "clients were late {} times (federation.deadline)",
            "few": f"federation.selection = {self._selection!r} chose fewer {{}} times",
        }
        return ", ".join(text.format(self._times[cause]) for cause, text in told.items() if self._times[cause])
