"""Means of models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpfl.federation.optimizers.base import client_weight
from cpfl.models.layout import RunningMean

Numbers = st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 500)), min_size=1, max_size=20)


@given(Numbers)
def test_weighted_mean(clients: list[tuple[float, int]]) -> None:
    mean = RunningMean()
    for number, samples in clients:
        mean.add({"w": torch.tensor([number, 2 * number], dtype=torch.float64)}, float(samples))
    total = sum(samples for _, samples in clients)
    expected = sum(number * samples for number, samples in clients) / total
    assert mean.result()["w"].tolist() == pytest.approx([expected, 2 * expected], rel=1e-9, abs=1e-9)


def test_kinds_of_weights() -> None:
    assert [client_weight("equal", n) for n in (1, 77)] == [1.0, 1.0]
    assert [client_weight("samples", n) for n in (1, 77)] == [1.0, 77.0]


def test_one_client_is_its_own_mean() -> None:
    state = {"w": torch.randn(5, generator=torch.Generator().manual_seed(1))}
    mean = RunningMean()
    mean.add(state, 1.0)
    assert torch.equal(mean.result()["w"], state["w"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_added_is_neither_kept_nor_changed(dtype: torch.dtype) -> None:
    """Engines train the next client in the same tensors."""
    live = {"w": torch.ones(3, dtype=dtype), "count": torch.tensor(4)}
    mean = RunningMean()
    mean.add(live, 1.0)
    live["w"].fill_(3.0)
    live["count"].fill_(9)
    mean.add(live, 1.0)
    assert live["w"].tolist() == [3.0] * 3
    live["w"].zero_()
    result = mean.result()
    assert result["w"].tolist() == [2.0] * 3
    assert result["w"].dtype == dtype
    assert result["count"].item() == 4  # counters stay the first client's


def test_result_can_be_asked_for_again() -> None:
    mean = RunningMean()
    mean.add({"w": torch.tensor([1.0])}, 1.0)
    first = mean.result()
    mean.add({"w": torch.tensor([3.0])}, 1.0)
    assert (first["w"].item(), mean.result()["w"].item()) == (1.0, 2.0)
