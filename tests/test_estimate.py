"""What a run will cost, estimated with as many threads as the run has: more of them would wait for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from cpfl import models
from cpfl.estimate import estimate
from cpfl.settings import GIVEN, Experiment
from cpfl.task.loading import given_arrays, load_task

CPU = torch.device("cpu")
THREADS: list[int] = []


class Counting(nn.Sequential):
    """Notes the number of threads that it computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        THREADS.append(torch.get_num_threads())
        return super().forward(x)  # type: ignore[no-any-return]


def dense() -> nn.Module:
    return Counting(nn.Flatten(), nn.Linear(64, 3))


def convolution() -> nn.Module:
    return Counting(nn.Conv2d(1, 3, 8), nn.Flatten())


@pytest.fixture
def two_threads() -> Iterator[None]:
    with models.threads(2):
        yield


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("model", "wanted"), [(dense, {1}), (convolution, {1, 2})])
def test_threads_of_the_estimate(model: type[nn.Module], wanted: set[int]) -> None:
    """A client trains with one thread, and so does a student without convolutions."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 200)
    given = {"data": {"train": GIVEN, "public": GIVEN}, "model": {"name": GIVEN}}
    experiment = Experiment(cohorts=2, clients=4, **given)
    task = load_task(experiment, None, model, given_arrays((x, y), (x, y), x), lambda text: None)
    THREADS.clear()
    sentence = estimate(task, CPU)
    assert set(THREADS) == wanted
    form = r"about [\d.]+ \w+ for 100 rounds of all cohorts \([\d.]+ steps each\), [\d.]+ \w+ to distill"
    assert re.match(form, sentence)
