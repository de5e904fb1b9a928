"""What the layers of many lanes share: where lanes lie, and the type of long sums."""

from __future__ import annotations

import torch
from torch import Tensor


def first(value: Tensor, dim: int | None, lanes: int) -> Tensor:
    """The value with its lanes in front; one that all lanes share is shown to each."""
    return value.expand(lanes, *value.shape) if dim is None else value.movedim(dim, 0)


def summed(x: Tensor) -> torch.dtype:
    """The type in which long sums are kept."""
    return torch.promote_types(x.dtype, torch.float32)


def pair(sizes: list[int]) -> tuple[int, int]:
    """Height and width."""
    return sizes[0], sizes[1]
