"""A client's local work in one round: which batches, and how they are augmented; engines do the arithmetic."""

import math

import numpy as np
from numpy.typing import NDArray

from cpfl.data.transform import AugmentationPlan, draw_augmentation
from cpfl.randomness import stream
from cpfl.settings import Federation


def steps(federation: Federation, samples: int) -> int:
    """Mini-batches of a client in one round."""
    return federation.local_steps or federation.local_epochs * math.ceil(samples / federation.batch_size)


def all_steps(federation: Federation, samples_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """Mini-batches of many clients."""
    if federation.local_steps:
        return np.full_like(samples_M, federation.local_steps)
    return federation.local_epochs * -(-samples_M // federation.batch_size)


def samples(federation: Federation, held: int) -> int:
    """Samples that a client visits in one round."""
    if federation.local_steps:
        return federation.local_steps * min(held, federation.batch_size)
    return federation.local_epochs * held


def samples_in_steps(federation: Federation, held: int, steps: int) -> int:
    """Samples in a client's first so many steps: only the last batch of an epoch may be short."""
    size = min(held, federation.batch_size)
    if federation.local_steps:
        return steps * size
    epochs, rest = divmod(steps, -(-held // federation.batch_size))
    return epochs * held + rest * size


def batches(federation: Federation, samples: int, seed: int, client: int, round: int) -> list[NDArray[np.int64]]:
    """Positions in the client's training samples, batch by batch; the last of an epoch may be short."""
    rng = stream(seed, "batches", client, round)
    size = federation.batch_size
    if federation.local_steps:  # every step draws from a fresh shuffle
        return [rng.permutation(samples)[:size] for _ in range(federation.local_steps)]
    orders = [rng.permutation(samples) for _ in range(federation.local_epochs)]
    return [order[first : first + size] for order in orders for first in range(0, samples, size)]


def augmentation(count: int, shape: tuple[int, ...], seed: int, client: int, round: int) -> AugmentationPlan:
    """The augmentation of every sample that the client visits in the round, in batch order."""
    return draw_augmentation(stream(seed, "augment", client, round), count, shape)


def validation_augmentation(count: int, shape: tuple[int, ...], seed: int, client: int, round: int) -> AugmentationPlan:
    """The augmentation of a client's validation images, where that setting is on."""
    return draw_augmentation(stream(seed, "val-augment", client, round), count, shape)
