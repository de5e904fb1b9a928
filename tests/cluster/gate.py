"""A selection that waits before its third round while a file exists, so that a test can hold a run on any machine.
Its rounds are those of `random`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.federation.selection.base import CohortInfo, Random

FREE_ROUNDS = 2


class Gated(Random):
    """No round after the second starts while the file exists."""

    plans_ahead = False  # a round starts after the one before it is closed

    def __init__(self, cohort: CohortInfo, gate: str) -> None:
        super().__init__(cohort)
        self._gate = Path(gate)

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        while round > FREE_ROUNDS and self._gate.exists():
            time.sleep(0.02)
        return super().select(available, count, round, rng, clock)


class Gate:
    """The file, and the settings of a run that waits for it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"
        self._path.touch()

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        here = {"federation.selection": "tests.cluster.gate:Gated", "federation.selection_args.gate": str(self._path)}
        return changes | here

    def open(self) -> None:
        self._path.unlink()
