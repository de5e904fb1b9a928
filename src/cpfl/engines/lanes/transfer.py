"""Small arrays on their way to the device and back, without anybody waiting."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes; every type can be viewed from here


def upload(device: torch.device, *arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> list[Tensor]:
    """Arrays as tensors on the device, all in one copy. Torch gives pinned memory back once the copy is done."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    view = host.numpy()
    for start, array in zip(starts, arrays, strict=True):
        view[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def download(values: Tensor) -> Tensor:
    """A copy on the host that is there once the device has come to it."""
    if values.device.type != "cuda":
        return values.clone()
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return target.copy_(values, non_blocking=True)
