"""Models as rows of one matrix: L lanes or N cohorts by P numbers, so that moving a model is moving a row.

Axes: L lanes, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.models import State


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in a row; buffers and frozen parameters are the same for all and stay outside."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    buffers: State
    frozen: State  # parameters that are not to be trained
    ties: dict[str, str]  # second names of a parameter, and its first

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a model's state."""
        parameters = models.trained(module)
        buffers = {name: value.detach() for name, value in module.named_buffers()}
        first = {id(value): name for name, value in parameters.items()}
        every = dict(module.named_parameters(remove_duplicate=False))
        held = {id(value): value.detach() for value in every.values() if id(value) not in first}
        frozen = {name: held[id(value)] for name, value in every.items() if id(value) in held}
        ties = {
            name: first[id(value)] for name, value in every.items() if id(value) in first and name not in parameters
        }
        return cls(tuple(parameters), tuple(value.shape for value in parameters.values()), buffers, frozen, ties)

    @property
    def size(self) -> int:
        """P."""
        return sum(shape.numel() for shape in self.shapes)

    def views(self, rows: Tensor) -> State:
        """Parameters by name of a matrix of rows (or of one row), sharing its memory."""
        at, views = 0, {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            views[name] = rows[..., at : at + shape.numel()].view(*rows.shape[:-1], *shape)
            at += shape.numel()
        return views

    def row(self, state: State, device: torch.device) -> Tensor:
        """A model's parameters as one row."""
        return torch.cat([state[name].detach().to(device).reshape(-1) for name in self.names])

    def state(self, row: Tensor) -> State:
        """A row as a model's state; the row must not change any more."""
        own = self.views(row)
        return {**own, **{name: own[first] for name, first in self.ties.items()}, **self.frozen, **self.buffers}
