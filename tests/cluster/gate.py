"""A selection that waits before its third round while a file lies there: a run that a test can hold, however fast the
machine is. The rounds themselves are those of `random`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.federation.selection import Cohort, Random

FREE_ROUNDS = 2


class Gated(Random):
    """Nobody passes while the gate is there."""

    foresees = False  # a round is not begun before the one before it is closed

    def __init__(self, cohort: Cohort, gate: str) -> None:
        super().__init__(cohort)
        self._gate = Path(gate)

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        while round > FREE_ROUNDS and self._gate.exists():
            time.sleep(0.02)
        return super().choose(able, wanted, round, rng, clock)


class Gate:
    """The file, and the settings of a run that heeds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"
        self._path.touch()

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        here = {"federation.selection": "tests.cluster.gate:Gated", "federation.selection_args.gate": str(self._path)}
        return changes | here

    def open(self) -> None:
        self._path.unlink()
