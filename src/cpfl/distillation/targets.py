"""What the student is taught: the teachers' outputs, joined.

Axes: N cohorts, T samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl.experiment import Distillation
from cpfl.models import State

CHUNK = 1024  # samples in one forward pass
Inputs = Callable[[slice], Tensor]
"""The model inputs at these positions, made when they are needed."""


@torch.no_grad()
def logits_of(module: nn.Module, count: int, inputs: Inputs) -> Tensor:
    """A model's logits on `count` samples, (T, C)."""
    module.eval()
    return torch.cat([module(inputs(slice(at, min(at + CHUNK, count)))) for at in range(0, count, CHUNK)])


def contribution(logits_TC: Tensor, settings: Distillation) -> Tensor:
    """What of a teacher is joined: its logits, or its probabilities."""
    return logits_TC if settings.join == "logits" else torch.softmax(logits_TC / settings.temperature, dim=1)


def joined(
    module: nn.Module,
    teachers: Iterable[State],
    weights_NC: NDArray[np.float64],
    count: int,
    inputs: Inputs,
    settings: Distillation,
) -> Tensor:
    """z̃ = Σ_i p_i ⊙ z_i, one teacher after the other: never N × T × C numbers at once."""
    total: Tensor | None = None
    for state, weight_C in zip(teachers, weights_NC, strict=True):
        module.load_state_dict(state)
        part = contribution(logits_of(module, count, inputs), settings)
        part = part * torch.as_tensor(weight_C, dtype=part.dtype, device=part.device)
        total = part if total is None else total + part
    assert total is not None, "there is always a teacher"
    # Class weights leave probabilities that do not add up to one; a softmax student could not reach them.
    return total / total.sum(dim=1, keepdim=True) if settings.join == "probabilities" else total
