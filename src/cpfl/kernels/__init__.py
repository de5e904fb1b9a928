"""Layers that compute many models of one layout at once, one kernel for all; `layers.fit` puts them into a model."""

from typing import Any

import torch
from torch import Tensor


def add_lanes(operation: Any) -> None:
    """Under vmap, an operation whose tensors all begin with lanes, or with images of all lanes, does all at once."""

    def rule(info: Any, dims: Any, *inputs: Any) -> tuple[Any, Any]:
        def joined(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            lanes_first = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            return lanes_first.flatten(0, 1).contiguous()

        def apart(value: Tensor) -> Tensor:
            return value.view(info.batch_size, -1, *value.shape[1:])

        outputs = operation(*map(joined, inputs, dims))
        if isinstance(outputs, Tensor):
            return apart(outputs), 0
        return tuple(map(apart, outputs)), (0,) * len(outputs)

    operation.register_vmap(rule)


def sum_dtype(x: Tensor) -> torch.dtype:
    """The type in which long sums are kept."""
    return torch.promote_types(x.dtype, torch.float32)
