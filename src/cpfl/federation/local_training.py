"""A client's local work in one round: batches, their augmentation, the learning rate; engines do the arithmetic."""

import json
import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpfl.data.transform import AugmentationPlan, draw_augmentation
from cpfl.errors import SettingError
from cpfl.randomness import stream
from cpfl.registry import Registry, require
from cpfl.settings import Federation
from cpfl.settings.types import MOST

MAX_VISITS = 10_000_000  # samples of a client in a round, each as often as it is trained on


def steps(federation: Federation, samples: int) -> int:
    """Mini-batches of a client in one round."""
    return federation.local_steps or federation.local_epochs * math.ceil(samples / federation.batch_size)


def all_steps(federation: Federation, samples_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """Mini-batches of many clients."""
    if federation.local_steps:
        return np.full_like(samples_M, federation.local_steps)
    return federation.local_epochs * -(-samples_M // federation.batch_size)


def check_steps(federation: Federation, most_samples: int) -> None:
    """Refuse a round whose batches take more memory than any machine has: a client draws all of them first."""
    visits = samples_in_steps(federation, most_samples, steps(federation, most_samples))
    if visits > MAX_VISITS:
        key = "local_steps" if federation.local_steps else "local_epochs"
        raise SettingError(
            f"federation.{key} = {getattr(federation, key):,} is not allowed: a client would train on {visits:,} "
            f"samples in a round, and at most {MAX_VISITS:,} are possible"
        )


def largest_batch(federation: Federation, samples: int) -> int:
    """Samples in the largest mini-batch of a client that holds so many: batch_size may be more than anybody has."""
    return min(samples, federation.batch_size)


def samples_in_steps(federation: Federation, held: int, steps: int) -> int:
    """Samples in a client's first so many steps: only the last batch of an epoch may be short."""
    size = largest_batch(federation, held)
    if federation.local_steps:
        return steps * size
    epochs, rest = divmod(steps, -(-held // federation.batch_size))
    return epochs * held + rest * size


def batches(federation: Federation, samples: int, seed: int, client: int, round: int) -> list[NDArray[np.int64]]:
    """Positions in the client's training samples, batch by batch; the last of an epoch may be short."""
    rng = stream(seed, "batches", client, round)
    size = federation.batch_size
    if federation.local_steps:  # every step draws from a fresh shuffle
        return [rng.permutation(samples)[:size].copy() for _ in range(federation.local_steps)]  # no view of it all
    orders = [rng.permutation(samples) for _ in range(federation.local_epochs)]
    return [order[first : first + size] for order in orders for first in range(0, samples, size)]


def augmentation(
    count: int, shape: tuple[int, ...], seed: int, client: int, round: int, purpose: str = "augment"
) -> AugmentationPlan:
    """The augmentation of every sample that the client visits in the round, in batch order; with the purpose
    "val-augment" that of its validation images."""
    return draw_augmentation(stream(seed, purpose, client, round), count, shape)


class LRSchedule:
    """The constant schedule, and the base of the others."""

    def share(self, done: int) -> float:
        """The part of federation.lr that is left after so many rounds."""
        return 1.0


class Step(LRSchedule):
    """Every `rounds` rounds the rate is multiplied by `factor`, until the part `floor` of it is left."""

    def __init__(self, rounds: int, factor: float = 0.5, floor: float = 0.01) -> None:
        require("rounds", rounds, 1 <= rounds <= MOST, f"1 or more, at most {MOST:,}")
        require("factor", factor, 0 < factor <= 1, "above 0, at most 1")
        require("floor", floor, 0 < floor <= 1, "above 0, at most 1")
        self.rounds, self.factor, self.floor = rounds, factor, floor

    def share(self, done: int) -> float:
        return max(self.factor ** (done // self.rounds), self.floor)


class Cosine(LRSchedule):
    """Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts: down to the part `floor` in `rounds` rounds."""

    def __init__(self, rounds: int, floor: float = 0.01) -> None:
        require("rounds", rounds, 1 <= rounds <= MOST, f"1 or more, at most {MOST:,}")
        require("floor", floor, 0 < floor <= 1, "above 0, at most 1")
        self.rounds, self.floor = rounds, floor

    def share(self, done: int) -> float:
        angle = math.pi * min(done, self.rounds) / self.rounds
        return self.floor + (1 - self.floor) * (1 + math.cos(angle)) / 2


LR_SCHEDULES: Registry[LRSchedule] = Registry(
    "federation.lr_schedule",
    f"{__name__}:LRSchedule",
    {"constant": f"{__name__}:LRSchedule", "step": f"{__name__}:Step", "cosine": f"{__name__}:Cosine"},
)


def rate(federation: Federation, round: int) -> float:
    """The learning rate of a round, counted from 1."""
    lr = federation.lr * lr_schedule(federation).share(round - 1)
    if round < federation.warmup_rounds:  # Goyal et al. 2017, section 2.2: gradual warm-up
        lr *= round / federation.warmup_rounds
    return lr


def lr_schedule(federation: Federation) -> LRSchedule:
    """The schedule that an experiment names, with its arguments checked."""
    return _schedule(federation.lr_schedule, json.dumps(federation.lr_schedule_args))


@lru_cache
def _schedule(name: str, args: str) -> LRSchedule:
    """Built once, for engines ask for the rate of every client and round."""
    return LR_SCHEDULES.build(name, json.loads(args))


def constant_rate(federation: Federation) -> bool:
    """Whether all rounds have the same rate."""
    return federation.lr_schedule == "constant" and federation.warmup_rounds <= 1
