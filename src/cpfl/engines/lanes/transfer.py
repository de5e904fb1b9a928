"""Small arrays on their way to the device and back, without anybody waiting."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes; every type can be viewed from here
LETTERS = 64  # of one inbox, under way at a time


class Inbox:
    """Named arrays that the host fills and sends in one copy; a captured graph reads them where they always are.

    Several letters may be under way; the host waits when all are.
    """

    def __init__(self, device: torch.device, **parts: tuple[tuple[int, ...], DTypeLike]) -> None:
        places, size = {}, 0
        for name, (shape, kind) in parts.items():
            length = int(np.prod(shape)) * np.dtype(kind).itemsize
            places[name] = (size, length, shape, kind)
            size += -(-length // ALIGNMENT) * ALIGNMENT
        on_gpu = device.type == "cuda"
        self._here = [torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(LETTERS if on_gpu else 1)]
        self._there = torch.zeros(size, dtype=torch.uint8, device=device)
        self._letters = [
            {name: _part(letter.numpy(), *place) for name, place in places.items()} for letter in self._here
        ]
        self._now = 0
        self._sent: list[torch.cuda.Event | None] = [None] * len(self._here)
        self.there: dict[str, Tensor] = {
            name: self._there[at : at + length].view(torch.from_numpy(np.zeros(0, kind)).dtype).view(shape)
            for name, (at, length, shape, kind) in places.items()
        }

    @property
    def here(self) -> dict[str, NDArray[np.generic]]:
        """The arrays of the next letter, to be filled."""
        return self._letters[self._now]

    def send(self) -> None:
        """Off it goes; `here` is another one now."""
        self._there.copy_(self._here[self._now], non_blocking=True)
        if self._there.is_cuda:
            mark = self._sent[self._now] = self._sent[self._now] or torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._now = (self._now + 1) % len(self._here)
            if earlier := self._sent[self._now]:
                earlier.synchronize()


def _part(
    letter: NDArray[np.uint8], at: int, length: int, shape: tuple[int, ...], kind: DTypeLike
) -> NDArray[np.generic]:
    return letter[at : at + length].view(kind).reshape(shape)


def upload(device: torch.device, array: NDArray[np.generic]) -> Tensor:
    """An array as a tensor on the device. Torch gives pinned memory back once the copy is done."""
    here = torch.from_numpy(array)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def download(values: Tensor) -> Tensor:
    """A copy on the host that is there once the device has come to it."""
    if values.device.type != "cuda":
        return values.clone()
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return target.copy_(values, non_blocking=True)
