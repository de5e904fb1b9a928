"""Built-in models of sequences: their shapes, and samples that they do not take."""

from __future__ import annotations

import pytest
import torch

from cpfl.errors import ModelError
from cpfl.models import factory
from cpfl.settings import Model


def test_shapes_and_sizes() -> None:
    assert factory(Model(name="signal-cnn"), (9, 128), 6)()(torch.zeros(3, 9, 128)).shape == (3, 6)
    leaf = factory(Model(name="char-lstm"), (80,), 80)()
    assert leaf(torch.zeros(3, 80, dtype=torch.int64)).shape == (3, 80)
    assert sum(value.numel() for value in leaf.parameters()) == 819_920  # LEAF's, with both biases of torch


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("signal-cnn", (9, 30), r"takes \(channels, 40 steps or more\), not samples of shape \(9, 30\)"),
        ("signal-cnn", (1, 28, 28), "takes .channels, 40 steps"),
        ("char-lstm", (1, 28, 28), r"takes sequences of characters \(steps,\), not samples of shape \(1, 28, 28\)"),
    ],
)
def test_samples_that_they_do_not_take(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        factory(Model(name=name), shape, 6)()
