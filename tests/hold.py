"""A selection that waits for a file: a test can hold a run at any round, however fast the machine is.

The rounds themselves are those of `random`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.federation.selection.base import CohortInfo, Random

ROOT = Path(__file__).parents[1]
PATH = {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}  # where other processes find this module


class Held(Random):
    """Opens no round beyond the number in the file, while the file exists; cohorts before `first` are not held."""

    plans_ahead = False  # a round opens only after the one before it is closed

    def __init__(self, cohort: CohortInfo, file: str, first: int = 0) -> None:
        super().__init__(cohort)
        self._file, self._held = Path(file), cohort.number >= first

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        while self._held and round > self._allowed():
            time.sleep(0.02)
        return super().select(available, count, round, rng, clock)

    def _allowed(self) -> float:
        try:
            return int(self._file.read_text())
        except FileNotFoundError:
            return float("inf")


class Hold:
    """The file, and the settings of a run that it holds."""

    def __init__(self, folder: Path, rounds: int, first: int = 0) -> None:
        self._file, self._first = folder / "allowed-rounds", first
        self.allow(rounds)

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """These settings with a selection that holds the run."""
        args = {"file": str(self._file), "first": self._first}
        held = {f"federation.selection_args.{key}": value for key, value in args.items()}
        return changes | {"federation.selection": "tests.hold:Held"} | held

    def allow(self, rounds: int) -> None:
        """Allow so many rounds in every cohort; the file is written whole or not at all."""
        new = self._file.with_suffix(".new")
        new.write_text(str(rounds))
        new.replace(self._file)

    def end(self) -> None:
        """Hold the run no longer."""
        self._file.unlink()
