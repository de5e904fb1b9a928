"""How updates of different age become one model.

An update is what a client's model differs by from the model it began with, and it is added to the model of today.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpfl.models import State

BETA = 0.35  # REFL's weight of how much an update differs: stale_beta in the authors' code


@dataclass(frozen=True)
class Arrived:
    """A client's model, the one it began with, how many updates of the model it missed, and its say."""

    model: State
    start: State
    age: int  # τ
    weight: float


def merged(rule: str, model: State, arrived: Sequence[Arrived]) -> State:
    """The next model after this one; counters, such as BatchNorm's, are the first client's."""
    names = [name for name, value in model.items() if value.is_floating_point()]
    updates = [{name: one.model[name] - one.start[name] for name in names} for one in arrived]
    damping = refl(updates, arrived) if rule == "refl" else fedbuff(arrived)
    found = {name: value.clone() for name, value in arrived[0].model.items()}
    for name in names:
        found[name] = model[name].clone()
        for factor, update in zip(damping, updates, strict=True):
            found[name].add_(update[name], alpha=factor)
    return found


def fedbuff(arrived: Sequence[Arrived]) -> list[float]:
    """1/K · s(τ) with s(τ) = 1 / sqrt(1 + τ) (Nguyen et al., section 5), where all have the same say."""
    total = sum(one.weight for one in arrived)
    return [one.weight / total / math.sqrt(1 + one.age) for one in arrived]


def refl(updates: Sequence[State], arrived: Sequence[Arrived]) -> list[float]:
    """Fresh updates have their full say, stale ones a part (Abdelmoniem et al., section 4.2); shares sum up to 1."""
    fresh = [update for update, one in zip(updates, arrived, strict=True) if one.age == 0]
    count = len(fresh)
    mean = {name: torch.stack([update[name] for update in fresh]).mean(0) for name in updates[0]}  # û_F
    norm = _square(mean)
    # Λ_s = ‖û_F − (u_s + n_F û_F) / (n_F + 1)‖² / ‖û_F‖²
    differing = [
        _square({name: mean[name] - (update[name] + count * mean[name]) / (count + 1) for name in mean}) / norm
        if one.age and norm
        else 0.0
        for update, one in zip(updates, arrived, strict=True)
    ]
    most = max(differing)
    factors = []
    for one, deviation in zip(arrived, differing, strict=True):
        part = 1.0
        if one.age:  # w_s = (1 − β) / (τ + 1) + β (1 − e^(−Λ_s / Λ_max)); their code takes a tenth of the e
            part = (1 - BETA) / (one.age + 1) + BETA * (1 - math.exp(-deviation / most) if most else 0.0)
        factors.append(part * one.weight)
    return [factor / sum(factors) for factor in factors]


def _square(update: dict[str, Tensor]) -> float:
    return math.fsum(float(value.double().square().sum()) for value in update.values())
