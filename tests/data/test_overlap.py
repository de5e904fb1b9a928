from __future__ import annotations

import time

import numpy as np

from cpfl.data.samples import Samples, shared_images

RNG = np.random.default_rng(11)


def images(count: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def test_exact_duplicates_between_sets() -> None:
    train, public, test = images(20), images(15), images(5)
    public[3] = public[9] = train[7]
    public[4] = train[2]
    [found] = shared_images({"train": Samples(train), "public": Samples(public), "test": Samples(test)})
    assert (found.first, found.second) == ("train", "public")
    assert found.images == 2
    assert found.examples == ((2, 4), (7, 3))
    assert str(found) == "train and public share 2 images (positions 2 = 4, 7 = 3)"


def test_duplicates_within_a_set_are_not_reported() -> None:
    twice = np.concatenate([images(3)] * 2)
    assert shared_images({"a": Samples(twice), "b": Samples(images(3))}) == []


def test_different_shapes_share_nothing() -> None:
    zeros = {"a": np.zeros((2, 1, 8, 8)), "b": np.zeros((2, 8, 8)), "c": np.zeros((2, 1, 8, 8), dtype=np.int64)}
    assert shared_images({name: Samples(x) for name, x in zeros.items()}) == []


def test_images_that_lie_scattered_in_memory() -> None:
    x = images(4)
    [found] = shared_images({"a": Samples(x), "b": Samples(np.asfortranarray(x)[::-1])})
    assert found.images == 4
    assert found.examples[0] == (0, 3)


def test_many_images_are_quick() -> None:
    x = np.arange(40_000, dtype=np.uint32)[:, None].repeat(768, axis=1).view(np.uint8).reshape(-1, 3, 32, 32)
    started = time.process_time()  # of this process: another may have the core
    [found] = shared_images({"a": Samples(x[:30_000]), "b": Samples(x[20_000:])})
    assert found.images == 10_000
    assert time.process_time() - started < 8  # about a quarter of a second; pair by pair it would be hours
