"""A model as two rows of numbers, one of floats and one of integers: rows lie in memory that processes share.

Axes: P floating-point numbers of a model, Q whole ones (counters, such as BatchNorm's).
"""

from __future__ import annotations

import mmap
from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cpfl.models import State

IMAGES = 4  # axes of what has channels


@dataclass(frozen=True)
class Form:
    """Where each tensor of a state lies in its row."""

    floats: dict[str, torch.Size]
    wholes: dict[str, torch.Size]
    dtype: torch.dtype
    last: bool = True  # channels lie last, as convolutions like them

    @classmethod
    def of(cls, state: State, dtype: torch.dtype) -> Form:
        """The form of a model's state; by name, for where a tensor lies decides how some kernels round."""
        named = sorted(state.items())
        floats = {name: value.shape for name, value in named if value.is_floating_point()}
        wholes = {name: value.shape for name, value in named if not value.is_floating_point()}
        return cls(floats, wholes, dtype)

    def only(self, names: Container[str]) -> Form:
        """The form of rows that hold these floats alone, in the same order."""
        floats = {name: shape for name, shape in self.floats.items() if name in names}
        return replace(self, floats=floats, wholes={})

    def views(self, floats_P: Tensor) -> State:
        """The floats of a row by name, sharing its memory."""
        return _views(floats_P, self.floats, self.last)

    def flat(self, value: Tensor) -> Tensor:
        """A tensor's numbers in the order in which a row holds them."""
        return (value.permute(0, 2, 3, 1) if self.last and value.dim() == IMAGES else value).reshape(-1)

    def laid(self, x: Tensor) -> Tensor:
        """A batch as it should lie in memory."""
        return x.contiguous(memory_format=torch.channels_last) if self.last and x.dim() == IMAGES else x

    def rows(self, count: int) -> Rows:
        """So many models, in memory that is shared with processes forked later."""
        sizes = [sum(shape.numel() for shape in part.values()) for part in (self.floats, self.wholes)]
        return Rows(self, _shared(count, sizes[0], self.dtype), _shared(count, sizes[1], torch.int64))


@dataclass(frozen=True)
class Rows:
    """Models by number."""

    form: Form
    floats_KP: Tensor
    wholes_KQ: Tensor

    def views(self, row: int) -> State:
        """A model's tensors by name, sharing its memory; whole numbers may be of another type than the model's."""
        return self.form.views(self.floats_KP[row]) | _views(self.wholes_KQ[row], self.form.wholes, self.form.last)

    def put(self, row: int, state: State) -> None:
        """Write a model down."""
        for name, value in self.views(row).items():
            value.copy_(state[name])

    def get(self, row: int, like: State) -> State:
        """A copy of a model, its tensors of the types that they have in `like`."""
        found = self.views(row)
        return {name: found[name].to(value.dtype, copy=True) for name, value in like.items() if name in found}


def _views(values: Tensor, shapes: dict[str, torch.Size], last: bool) -> State:
    found, at = State(), 0
    for name, shape in shapes.items():
        found[name] = _unfolded(values[at : at + shape.numel()], shape, last)
        at += shape.numel()
    return found


def _unfolded(numbers: Tensor, shape: torch.Size, last: bool) -> Tensor:
    if not last or len(shape) != IMAGES:
        return numbers.view(shape)
    outputs, channels, height, width = shape
    return numbers.view(outputs, height, width, channels).permute(0, 3, 1, 2)


def _shared(count: int, size: int, dtype: torch.dtype) -> Tensor:
    length = max(1, count * size) * dtype.itemsize
    memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)  # anonymous: no file, no limit on such files
    return torch.from_numpy(memory)[: count * size * dtype.itemsize].view(dtype).view(count, size)
