"""The clients' learning rate by round: federation.lr, its schedule and warm-up."""

import json
import math
from functools import lru_cache

from cpfl.registry import Registry, require
from cpfl.settings import Federation


class LRSchedule:
    """The constant schedule, and the base of the others."""

    def share(self, done: int) -> float:
        """The part of federation.lr that is left after so many rounds."""
        return 1.0


class Step(LRSchedule):
    """Every `rounds` rounds the rate is multiplied by `factor`, until the part `floor` of it is left."""

    def __init__(self, rounds: int, factor: float = 0.5, floor: float = 0.01) -> None:
        require("rounds", rounds, rounds >= 1, "1 or more")
        require("factor", factor, 0 < factor <= 1, "above 0, at most 1")
        require("floor", floor, 0 < floor <= 1, "above 0, at most 1")
        self.rounds, self.factor, self.floor = rounds, factor, floor

    def share(self, done: int) -> float:
        return max(self.factor ** (done // self.rounds), self.floor)


class Cosine(LRSchedule):
    """Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts: down to the part `floor` in `rounds` rounds."""

    def __init__(self, rounds: int, floor: float = 0.01) -> None:
        require("rounds", rounds, rounds >= 1, "1 or more")
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
    lr = federation.lr * schedule(federation).share(round - 1)
    if round < federation.warmup_rounds:  # Goyal et al. 2017, section 2.2: gradual warm-up
        lr *= round / federation.warmup_rounds
    return lr


def schedule(federation: Federation) -> LRSchedule:
    """The schedule that an experiment names, with its arguments checked."""
    return _schedule(federation.lr_schedule, json.dumps(federation.lr_schedule_args))


@lru_cache
def _schedule(name: str, args: str) -> LRSchedule:
    """Built once, for engines ask for the rate of every client and round."""
    return LR_SCHEDULES.build(name, json.loads(args))


def constant(federation: Federation) -> bool:
    """Whether all rounds have the same rate."""
    return federation.lr_schedule == "constant" and federation.warmup_rounds <= 1
