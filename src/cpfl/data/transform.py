"""How stored samples become a model's inputs: pixels in 0…1, integers as they are, normalised, augmented by a plan.

Axes: T samples, C channels, H height, W width.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.data.samples import IMAGE_AXES, Field

PAD = 4  # random crop with this much black around the image
HOLE = 16  # side of the square that cutout blanks
NOWHERE = -HOLE  # a cutout centre that blanks nothing

AugmentationPlan = NDArray[np.int64]
Kind = Literal["pixels", "numbers", "integers"]


def kind_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kind:
    """What an array holds, unless data.inputs says it: pixels are bytes of (channels, height, width)."""
    if dtype == np.uint8 and len(shape) == IMAGE_AXES:
        return "pixels"
    return "numbers" if np.issubdtype(dtype, np.floating) else "integers"


def draw_augmentation(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> AugmentationPlan:
    """Crop offset, flip and cutout centre of `count` images, (T, 5): small integers that any engine can apply."""
    _, height, width = shape
    ranges = (2 * PAD + 1, 2 * PAD + 1, 2, height, width)
    return np.stack([rng.integers(0, r, count) for r in ranges], axis=1)


@dataclass(frozen=True)
class Transform:
    """From stored samples to inputs: scale, then normalise."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype
    kind: Kind = "numbers"
    fields: tuple[Field, ...] = ()  # of samples with several inputs

    def __call__(self, x: Any, plan_T5: Tensor | None = None) -> Any:
        """Inputs from a batch of stored samples; with a plan, augmented by it."""
        if self.fields:
            found = {one.name: self._plain(_unpacked(x, one), _kind(one)) for one in self.fields}
            return tuple(found.values()) if self.fields[0].name.isdigit() else found
        if self.kind == "integers":
            return x.long()
        if plan_T5 is not None:
            x = crop_and_flip(x, plan_T5)
        scaled = self._plain(x, self.kind)
        if self.mean:
            axes = (-1, *([1] * (x.dim() - 2)))
            mean, std = (_constant(values, self.dtype, x.device).view(axes) for values in (self.mean, self.std))
            scaled = (scaled - mean) / std
        return scaled if plan_T5 is None else cut_out(scaled, plan_T5)

    def _plain(self, x: Tensor, kind: Kind) -> Tensor:
        if kind == "integers":
            return x if x.dtype == torch.bool else x.long()
        return x.to(self.dtype) / 255 if kind == "pixels" else x.to(self.dtype)


def _kind(one: Field) -> Kind:
    return kind_of(np.dtype(one.dtype), one.shape)


def _unpacked(x_TW: Tensor, one: Field) -> Tensor:
    """One input of rows of bytes."""
    if one.dtype == "bool":  # the compiler takes no bytes as booleans
        return (x_TW[:, one.start : one.end] != 0).view(len(x_TW), *one.shape)
    dtype = torch.from_numpy(np.empty(0, one.dtype)).dtype
    return x_TW[:, one.start : one.end].contiguous().view(dtype).view(len(x_TW), *one.shape)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uploaded once: a captured graph must find it where it was."""
    return torch.tensor(values, dtype=dtype, device=device)


def crop_and_flip(x_TCHW: Tensor, plan_T5: Tensor) -> Tensor:
    """Shift each image by its crop offset, black beyond the border, and mirror it if its plan says so."""
    count, _, height, width = x_TCHW.shape
    dy, dx, flip = (plan_T5[:, column, None] for column in range(3))
    rows = torch.arange(height, device=x_TCHW.device) + dy
    cols = torch.arange(width, device=x_TCHW.device).expand(count, width)
    cols = torch.where(flip == 1, width - 1 - cols, cols) + dx
    padded = torch.nn.functional.pad(x_TCHW, (PAD,) * 4)
    sample = torch.arange(count, device=x_TCHW.device)[:, None, None]
    # Advanced indices around the channel slice put it last; move it back.
    return padded[sample, :, rows[:, :, None], cols[:, None, :]].movedim(-1, 1)


def draw_mix(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Another image and a square, for each of `count` images: partner, centre and half a side, (T, 4).

    Squares of any share of the image are as likely (CutMix, Yun et al. 2019).
    """
    _, height, width = shape
    half = np.sqrt(rng.random(count)) * min(height, width) / 2
    centre = [rng.integers(0, side, count) for side in (height, width)]
    return np.stack([rng.permutation(count), *centre, half.round().astype(np.int64)], axis=1)


def paste(x_TCHW: Tensor, other_TCHW: Tensor, mix_T4: Tensor) -> Tensor:
    """Each image with the square of its mix taken from the other; half a side of 0: nothing."""
    half = mix_T4[:, 3, None]
    return torch.where(_square(x_TCHW, mix_T4[:, 1:3], half - 1, half), other_TCHW, x_TCHW)


def cut_out(x_TCHW: Tensor, plan_T5: Tensor) -> Tensor:
    """Blank a square around each image's cutout centre with the mean (0 after normalising)."""
    return x_TCHW.masked_fill(_square(x_TCHW, plan_T5[:, 3:], HOLE // 2, HOLE // 2), 0)


def _square(x_TCHW: Tensor, centre_T2: Tensor, before: Tensor | int, after: Tensor | int) -> Tensor:
    """Which pixels lie in a square that begins `before` its centre and ends below `after` it, (T, 1, H, W)."""
    inside = []
    for axis, side in enumerate(x_TCHW.shape[-2:]):
        offset = torch.arange(side, device=x_TCHW.device) - centre_T2[:, axis, None]
        inside.append((offset >= -before) & (offset < after))
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
