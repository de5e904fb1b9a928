"""A selection that goes no further than a file allows: runs that a test can hold wherever it wants to look at them,
however fast the machine is. The rounds themselves are those of `random`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.federation.selection import Cohort, Random

ROOT = Path(__file__).parents[1]
PATH = {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}  # where other processes find this module


class Held(Random):
    """No round beyond the number in the file, while there is one; cohorts before `first` are free."""

    foresees = False  # a round is not begun before the one before it is closed

    def __init__(self, cohort: Cohort, file: str, first: int = 0) -> None:
        super().__init__(cohort)
        self._file, self._bound = Path(file), cohort.number >= first

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        while self._bound and round > self._allowed():
            time.sleep(0.02)
        return super().choose(able, wanted, round, rng, clock)

    def _allowed(self) -> float:
        try:
            return int(self._file.read_text())
        except FileNotFoundError:
            return float("inf")


class Hold:
    """The file, and the settings of a run that heeds it."""

    def __init__(self, folder: Path, rounds: int, first: int = 0) -> None:
        self._file, self._first = folder / "allowed-rounds", first
        self.allow(rounds)

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """These, and that it is held."""
        args = {"file": str(self._file), "first": self._first}
        held = {f"federation.selection_args.{key}": value for key, value in args.items()}
        return changes | {"federation.selection": "tests.hold:Held"} | held

    def allow(self, rounds: int) -> None:
        """So many, in every cohort; written whole or not at all."""
        new = self._file.with_suffix(".new")
        new.write_text(str(rounds))
        new.replace(self._file)

    def end(self) -> None:
        """All that are wanted."""
        self._file.unlink()
