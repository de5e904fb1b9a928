"""Copies of a model object, with its weights or with fresh ones."""

import copy
import math

import torch
from torch import nn

from cpfl.errors import FAILURES, ModelError, first_line
from cpfl.models import trained
from cpfl.models.checks import listed


def copied(model: nn.Module) -> nn.Module:
    """The same model once more."""
    try:
        return copy.deepcopy(model)
    except FAILURES as error:
        raise ModelError(
            f"the model object cannot be copied: {first_line(error)}; give its class, or a function that builds it"
        ) from None


def drawn_anew(model: nn.Module) -> nn.Module:
    """A copy whose layers have drawn fresh weights by their own reset_parameters; what is frozen stays as it is."""
    module = copied(model)
    with torch.no_grad():
        _draw(module)
    return module


def _draw(module: nn.Module) -> None:
    """Give all trained parameters fresh numbers; they are no numbers until they have some."""
    fixed = [(value, value.clone()) for value in module.parameters() if not (value.requires_grad or _is_lazy(value))]
    own = {name: value.fill_(math.nan) for name, value in trained(module).items() if not _is_lazy(value)}
    for part in module.modules():
        if all(value.requires_grad for value in part.parameters()):
            _reset(part, "reset_parameters")
    for part in reversed(list(module.modules())):  # as they were built: a whole after its parts
        for name in ("reset_parameters", "_reset_parameters"):
            if any(value.isnan().any() for value in part.parameters() if not _is_lazy(value)):
                _reset(part, name)
    for value, before in fixed:
        value.copy_(before)
    if names := [name for name, value in own.items() if value.isnan().any()]:
        raise ModelError(
            f"no layer of the model object has a reset_parameters that draws fresh weights for {listed(names)}: give "
            'its class or a function that builds it, or set model.start = "given" to train from the weights that it has'
        )


def _reset(part: nn.Module, name: str) -> None:
    method = getattr(part, name, None)
    if callable(method):
        method()


def _is_lazy(value: nn.Parameter) -> bool:
    return bool(nn.parameter.is_lazy(value))
