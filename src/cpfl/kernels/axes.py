"""The axis of lanes, and the type of long sums."""

import torch
from torch import Tensor


def lanes_first(value: Tensor, dim: int | None, lanes: int) -> Tensor:
    """The value with its lanes as first axis; one that all lanes share is expanded."""
    return value.expand(lanes, *value.shape) if dim is None else value.movedim(dim, 0)


def sum_dtype(x: Tensor) -> torch.dtype:
    """The type in which long sums are kept."""
    return torch.promote_types(x.dtype, torch.float32)
