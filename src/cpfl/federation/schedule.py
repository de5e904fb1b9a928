"""The clients' learning rate, round by round."""

from __future__ import annotations

import math

from cpfl.experiment import Federation


def rate(federation: Federation, round: int) -> float:
    """What local steps of this round, counted from 1, are multiplied by."""
    done, whole, floor = round - 1, federation.schedule_rounds, federation.schedule_floor
    lr = federation.lr
    if federation.schedule == "step":
        lr *= max(federation.schedule_factor ** (done // whole), floor)
    elif federation.schedule == "cosine":  # Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts
        lr *= floor + (1 - floor) * (1 + math.cos(math.pi * min(done, whole) / whole)) / 2
    if round < federation.warmup:  # Goyal et al. 2017, section 2.2: gradual warm-up
        lr *= round / federation.warmup
    return lr


def constant(federation: Federation) -> bool:
    """Whether all rounds have the same rate."""
    return federation.schedule == "constant" and federation.warmup <= 1
