"""Selections that wait, before the third round while a file exists or before every round, and a loss that waits after
its first epoch, so that a test can hold a run on any machine. Their results are those of `random` and of `l1`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cpfl.distillation.objective import L1
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
        reached(self._gate, round, os.getpid()).touch()
        return super().select(available, count, round, rng, clock)


class Paced(Random):
    """Every round waits a little, so that a run that lasts as long as a test leaves the machine to the test."""

    plans_ahead = False

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        time.sleep(0.2)
        return super().select(available, count, round, rng, clock)


class GatedLoss(L1):
    """No step after the first epoch while the file exists."""

    def __init__(self, settings: Any, probabilities: bool, gate: str, run: str) -> None:
        super().__init__(settings, probabilities)
        self._gate, self._epochs = Path(gate), Path(run) / "epochs.jsonl"

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        while self._gate.exists() and self._epochs.is_file():
            time.sleep(0.02)
        return super().__call__(logits_BC, targets_BC)


def reached(gate: Path, round: int, pid: int) -> Path:
    """The file that says that a process has begun a round."""
    return gate.with_name(f"{gate.name}-round-{round}-{pid}")


class Gate:
    """The file, and the settings of a run that waits for it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"
        self._path.touch()
        self._second = folder / "second-gate"
        self._second.touch()

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        here = {"federation.selection": "tests.cluster.gate:Gated", "federation.selection_args.gate": str(self._path)}
        return changes | here

    def distillation(self, run: Path) -> dict[str, Any]:
        """The settings with which the student waits for `open_distillation` after its first epoch."""
        args = {"gate": str(self._second), "run": str(run)}
        own = {f"distillation.loss_args.{key}": value for key, value in args.items()}
        return {"distillation.loss": "tests.cluster.gate:GatedLoss", **own}

    def begun(self, round: int, pid: int) -> bool:
        """Whether a process has begun a round."""
        return reached(self._path, round, pid).exists()

    def open_distillation(self) -> None:
        self._second.unlink()

    def open(self) -> None:
        self._path.unlink()
