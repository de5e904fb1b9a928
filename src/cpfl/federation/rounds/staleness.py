"""How updates of different ages become one model.

An update is what a client's model differs by from the model it began with, and it is added to the model of today.
Axes: K updates, P numbers of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpfl.models import State

BETA = 0.35  # REFL's weight of how much an update differs: stale_beta in the authors' code


@dataclass(frozen=True)
class Arrived:
    """A client's model, the one it began with, how many updates of the model it missed, and its weight."""

    model: State
    start: State
    age: int  # τ
    weight: float


def merged(rule: str, model: State, arrived: Sequence[Arrived]) -> State:
    """The next model after this one; counters, such as BatchNorm's, are the first client's."""
    # Sorted, because a resumed run may have another order of names.
    names = sorted(name for name, value in model.items() if value.is_floating_point())
    updates = [torch.cat([(one.model[name] - one.start[name]).flatten() for name in names]) for one in arrived]
    change_P = combined(rule, torch.stack(updates), [one.age for one in arrived], [one.weight for one in arrived])
    found = {name: value.clone() for name, value in arrived[0].model.items()}
    parts = torch.split(change_P, [model[name].numel() for name in names])
    for name, part in zip(names, parts, strict=True):
        found[name] = model[name] + part.view_as(model[name])
    return found


def combined(rule: str, updates_KP: Tensor, ages: Sequence[int], weights: Sequence[float]) -> Tensor:
    """The updates as one; the device that they are on is not waited for."""
    factors_K = refl(updates_KP, ages, weights) if rule == "refl" else fedbuff(updates_KP, ages, weights)
    return (factors_K.to(updates_KP.dtype)[:, None] * updates_KP).sum(0)


def fedbuff(updates_KP: Tensor, ages: Sequence[int], weights: Sequence[float]) -> Tensor:
    """1/K · s(τ) with s(τ) = 1 / sqrt(1 + τ) (Nguyen et al., section 5), where all weights are equal."""
    total = sum(weights)
    return _on_device(
        updates_KP, [weight / total / math.sqrt(1 + age) for weight, age in zip(weights, ages, strict=True)]
    )


def refl(updates_KP: Tensor, ages: Sequence[int], weights: Sequence[float]) -> Tensor:
    """Fresh updates count fully, stale ones in part (Abdelmoniem et al., section 4.2); factors sum up to 1."""
    count = sum(age == 0 for age in ages)
    share_K = _on_device(updates_KP, [float(age == 0) / count for age in ages]).to(updates_KP.dtype)
    mean_P = (share_K[:, None] * updates_KP).sum(0)  # û_F
    # Λ_s = ‖û_F − (u_s + n_F û_F) / (n_F + 1)‖² / ‖û_F‖², of which Λ_s / Λ_max is all that is needed
    differing_K = (mean_P - updates_KP).square().sum(1, dtype=torch.float64)
    differing_K = differing_K * _on_device(updates_KP, [float(age > 0) for age in ages]) * mean_P.any()
    part_K = differing_K / differing_K.max().clamp(min=torch.finfo(torch.float64).tiny)
    # w_s = (1 − β) / (τ + 1) + β (1 − e^(−Λ_s / Λ_max)); their code takes a tenth of the e
    own_K = _on_device(updates_KP, [(1 - BETA) / (age + 1) if age else 1.0 for age in ages])
    factors_K = (own_K + BETA * (1 - torch.exp(-part_K))) * _on_device(updates_KP, weights)
    return factors_K / factors_K.sum()


def _on_device(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(like.device, non_blocking=True)
