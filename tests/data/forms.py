"""Data sets as users have them in Python: the same samples in every form."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import cpfl
from cpfl.data.given import Given
from cpfl.task.given import client_settings
from cpfl.task.loading import given_arrays

RNG = np.random.default_rng(5)
NAMES = ("ann", "bob", "eve")
SIZES = {"ann": 30, "bob": 12, "eve": 21}
PARTS = {name: (RNG.normal(size=(size, 4)).astype("float32"), RNG.integers(0, 3, size)) for name, size in SIZES.items()}
X, Y = (np.concatenate([PARTS[name][place] for name in NAMES]) for place in (0, 1))
OWNER = np.repeat(NAMES, [SIZES[name] for name in NAMES])
PUBLIC = RNG.normal(size=(40, 4)).astype("float32")
FEATURES = [f"f{place}" for place in range(4)]
SMALL: dict[str, Any] = {"cohorts": 2, "max_rounds": 1, "distillation.epochs": 1, "federation.lr": 0.1}
BY_COLUMN = {"data.split": "column", "data.column": "who"}


def pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed: the extra dev has it")


def hugging_face() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("datasets", reason="datasets is not installed: the extra dev has it")


class Rows(Dataset[Any]):
    """A Dataset of any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


class Longer(Rows):
    """One that has fewer items than it says."""

    def __len__(self) -> int:
        return 2


class Stream(IterableDataset[Any]):
    """A Dataset whose items have no numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter([])


def columns(x: Any, y: Any, **more: Any) -> dict[str, Any]:
    return {**{name: x[:, place] for place, name in enumerate(FEATURES)}, "label": y, **more}


def tensors(x: Any, y: Any) -> TensorDataset:
    return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))


def read(train: Any, test: Any = None, public: Any = None, **settings: Any) -> Given:
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    chosen = {"cohorts": 1, **chosen}
    own = client_settings(train, cpfl.Experiment(), chosen)
    experiment = cpfl.settings.experiment_file.with_settings(cpfl.Experiment(), {**chosen, **own})
    return given_arrays(train, test, public, experiment)
