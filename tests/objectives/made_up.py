"""Easy made-up tasks, one for each objective: samples, labels, and a small model that can learn them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import cpfl

SAMPLES, FEATURES, WORDS, POSITIONS = 260, 5, 6, 4
TRAIN, TEST, PUBLIC = slice(0, 120), slice(120, 180), slice(180, SAMPLES)
RNG = np.random.default_rng(3)
TABLE = RNG.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
SUMS = (TABLE @ RNG.normal(size=(FEATURES, 3))).astype(np.float32)
TOKENS = RNG.integers(0, WORDS, (SAMPLES, POSITIONS))
NEXT = (TOKENS + 1) % WORDS  # the token after each token
NEXT[:, -1] = -100  # nothing follows the last one


@dataclass(frozen=True)
class MadeUp:
    """An objective with data and a model."""

    x: NDArray[Any]
    y: NDArray[Any]
    model: Callable[[], nn.Module]
    metric: str


def table(outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


TASKS = {
    "classification": MadeUp(TABLE, SUMS.argmax(1), table(3), "accuracy"),
    "binary": MadeUp(TABLE, SUMS[:, 0] > 0, table(1), "accuracy"),
    "multi-label": MadeUp(TABLE, (SUMS > 0.5).astype(int), table(3), "accuracy of labels"),
    "regression": MadeUp(TABLE, SUMS[:, :2], table(2), "R²"),
    "per-position": MadeUp(
        TOKENS, NEXT, lambda: nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)), "accuracy of positions"
    ),
}
SETTINGS: dict[str, Any] = {
    "cohorts": 2, "clients": 4, "max_rounds": 2, "precision": "float64", "data.split": "iid", "federation.lr": 0.1,
    "distillation.batch_size": 20, "distillation.epochs": 1,
}  # fmt: skip


def given(name: str) -> dict[str, Any]:
    """A task's model and data, as arguments."""
    task = TASKS[name]
    return {
        "model": task.model, "train": (task.x[TRAIN], task.y[TRAIN]), "test": (task.x[TEST], task.y[TEST]),
        "public": task.x[PUBLIC],
    }  # fmt: skip


def trained(
    name: str,
    out: Path,
    engine: str = "reference",
    own: str = "",
    callback: cpfl.Callback | None = None,
    **settings: Any,
) -> cpfl.Run:
    """A run of a task; `own` is another objective than that of its name."""
    return cpfl.run(
        cpfl.Experiment(), **given(name), out=out, engine=engine, device="cpu", callback=callback,
        settings={**SETTINGS, "model.objective": own or name, **settings},
    )  # fmt: skip
