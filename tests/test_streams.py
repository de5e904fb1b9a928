"""Many streams at once are the streams one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpfl.randomness import stream, streams


@given(
    seed=st.integers(0, 2**100),
    purpose=st.sampled_from(["validation", "batches", "x"]),
    numbers=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5),
)
def test_the_same_draws(seed: int, purpose: str, numbers: list[int]) -> None:
    for number, many in zip(numbers, streams(seed, purpose, numbers), strict=True):
        one = stream(seed, purpose, number)
        assert many.integers(0, 1000, 3).tolist() == one.integers(0, 1000, 3).tolist()
        assert many.random() == one.random()
        assert many.permutation(7).tolist() == one.permutation(7).tolist()


@pytest.mark.parametrize("seed", [0, 90, 2**32 - 1, 2**32, 2**64, 2**200 + 5])
def test_seeds_of_any_length(seed: int) -> None:
    (many,) = streams(seed, "a", [3])
    assert np.array_equal(many.integers(0, 2**60, 10), stream(seed, "a", 3).integers(0, 2**60, 10))


def test_leftovers_of_one_draw_do_not_reach_the_next() -> None:
    """A 32-bit draw leaves half a word behind; the next address must not find it."""
    drawn = [rng.integers(0, 9, 3).tolist() for rng in streams(1, "a", [0, 1])]
    assert drawn == [stream(1, "a", k).integers(0, 9, 3).tolist() for k in (0, 1)]
