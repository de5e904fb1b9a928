"""A cohort's models of late rounds as one: steps of constant length end around a minimum, their mean nearer to it."""

from __future__ import annotations

import torch

from cpfl.models import State


def blended(average: State, model: State, share: float) -> State:
    """So much of the new model, the rest of the average; a new state, for others may still hold the old one."""
    if share >= 1:
        return model
    weights = [name for name, value in model.items() if value.is_floating_point()]  # counts are the newest model's
    olds = [average[name].to(model[name].device) for name in weights]
    news = torch._foreach_lerp(olds, [model[name] for name in weights], share)
    return model | dict(zip(weights, news, strict=True))
