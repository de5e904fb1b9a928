"""A client's round as small integers, made on the host: which sample in which step, and how it is augmented.

Axes: S steps, B batch, T samples of the round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.experiment import Federation
from cpfl.federation import local

EMPTY = -1  # in place of a sample: nothing here

Plan = tuple[NDArray[np.int32], NDArray[np.int8] | None]
"""The samples of a round in batch order, by their place among the client's own, and how each is augmented (T, 5)."""


@dataclass(frozen=True)
class Task:
    """One client's work in one round of its cohort."""

    cohort: int
    client: int
    round: int
    steps: int


def draw(settings: Federation, seed: int, shape: tuple[int, ...] | None, samples: int, client: int, round: int) -> Plan:
    """A client's round; without a shape nothing is augmented."""
    order = np.concatenate(local.batches(settings, samples, seed, client, round)).astype(np.int32)
    if shape is None:
        return order, None
    return order, local.augmentation(len(order), shape, seed, client, round).astype(np.int8)


def lay_out(
    settings: Federation,
    own: NDArray[np.integer],
    plan: Plan,
    steps: int,
    rows_SB: NDArray[np.int32],
    plan_SB5: NDArray[np.int8] | None,
) -> None:
    """Write a plan's first so many steps down: rows of the training set, empty where a batch is short."""
    order, augmentation = plan
    whole, size = local.steps(settings, len(own)), settings.batch_size
    counts = np.full(whole, min(size, len(own)))
    if not settings.local_steps:  # the last batch of an epoch may be short
        epoch = whole // settings.local_epochs
        counts[epoch - 1 :: epoch] = len(own) - (epoch - 1) * size
    there = np.arange(size) < counts[:steps, None]
    visited = int(counts[:steps].sum())
    rows_SB[:steps] = EMPTY
    rows_SB[:steps][there] = own[order[:visited]]
    if plan_SB5 is not None and augmentation is not None:
        plan_SB5[:steps][there] = augmentation[:visited]
