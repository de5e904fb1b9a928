"""Layers, forward and back with the very operations that autograd would call; each keeps what its way back needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.engines.workers.form import IMAGES

ATEN = torch.ops.aten
LANES = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8  # floats of a vector


class Layer:
    """One layer; it keeps what its way back needs."""

    takes: int | None = None  # axes of its input; None: any
    in_float = False  # its parameters stay in full precision under bf16

    def __init__(self, module: Any) -> None:
        self.module = module
        self.params: list[Tensor] = []
        self.slopes: list[Tensor] = []  # where theirs are written

    def forward(self, x: Tensor) -> Tensor:
        """What it makes of an input."""
        raise NotImplementedError

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """The slope of its input, if it is needed; its parameters' are written down."""
        raise NotImplementedError

    def write(self, slopes: Sequence[Tensor]) -> None:
        """Its parameters' slopes, where they belong."""
        for place, slope in zip(self.slopes, slopes, strict=True):
            place.copy_(slope)


class Convolution(Layer):
    """nn.Conv2d. Where its outputs fill less than half of a vector, neighbours of a row are computed together.

    That is a convolution with as many kernels for each neighbour, every one shifted by one column in a window that is
    so much wider, and with steps of as many columns. With channels last its output is the same row of numbers.
    """

    takes = IMAGES
    _wide: Tensor | None = None  # the kernels of neighbours

    def forward(self, x: Tensor) -> Tensor:
        """Keeps its input."""
        form, weight, bias = self.module, self.params[0], self.params[1] if len(self.params) > 1 else None
        self._x, self._count = x, together(form, x)
        if self._count == 1:
            return torch.conv2d(x, weight, bias, form.stride, form.padding, form.dilation, form.groups)
        self._weight, stride = self._spread(weight), (form.stride[0], self._count)
        bias = None if bias is None else bias.repeat(self._count)
        return regrouped(torch.conv2d(x, self._weight, bias, stride, form.padding, form.dilation), form.out_channels)

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """In one call, or of neighbours' kernels, which would be too wide a detour for the slope of the input."""
        count, biased, stride = self._count, len(self.params) > 1, self.module.stride
        if count == 1:
            into, weight, bias = self._slopes(slope, self.params[0], stride, [further, True, biased])
        else:
            wide = regrouped(slope, len(self._weight))
            _, weight, bias = self._slopes(wide, self._weight, (stride[0], count), [False, True, biased])
            first, *others = neighbours(weight, count)
            weight, bias = sum(others, first), bias.view(count, -1).sum(0) if biased else None
            into = self._slopes(slope, self.params[0], stride, [True, False, False])[0] if further else slope
        self.write([weight, bias] if biased else [weight])
        return into  # type: ignore[no-any-return]

    def _slopes(self, slope: Tensor, weight: Tensor, stride: Sequence[int], wanted: list[bool]) -> Any:
        form, outputs = self.module, [len(weight)] if wanted[2] else None
        return ATEN.convolution_backward.default(
            slope, self._x, weight, outputs, stride, form.padding, form.dilation, False, [0, 0], form.groups, wanted
        )

    def _spread(self, weight: Tensor) -> Tensor:
        """Kernels for neighbours; between them stays nothing."""
        outputs, inputs, height, width = weight.shape
        shape = self._count * outputs, inputs, height, width + self._count - 1
        if self._wide is None or self._wide.shape != shape:
            self._wide = weight.new_zeros(shape).contiguous(memory_format=torch.channels_last)
        for part in neighbours(self._wide, self._count):
            part.copy_(weight)
        return self._wide


def together(form: nn.Conv2d, x: Tensor) -> int:
    """How many neighbours of a row are computed together; in bf16 it gains nothing."""
    kernel, padding = form.kernel_size[1], form.padding[1]
    assert not isinstance(padding, str)
    plain = form.groups == form.stride[1] == form.dilation[1] == 1 and kernel > 1 and x.dtype != torch.bfloat16
    columns, most = x.shape[3] + 2 * padding - kernel + 1, LANES // form.out_channels if plain else 1
    return next(count for count in range(max(most, 1), 0, -1) if columns % count == 0)


def neighbours(wide: Tensor, count: int) -> list[Tensor]:
    """The kernels of each of so many neighbours."""
    outputs, width = len(wide) // count, wide.shape[3] - count + 1
    return [wide[k * outputs : (k + 1) * outputs, :, :, k : k + width] for k in range(count)]


def regrouped(images: Tensor, channels: int) -> Tensor:
    """The same rows of numbers as pixels of so many channels."""
    count, _, height, _ = images.shape
    return images.permute(0, 2, 3, 1).reshape(count, height, -1, channels).permute(0, 3, 1, 2)


class Linear(Layer):
    """nn.Linear, of one row a sample."""

    takes = 2

    def forward(self, x: Tensor) -> Tensor:
        """Keeps its input."""
        self._x = x
        return nn.functional.linear(x, *self.params)

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """Products of matrices."""
        self.write([slope.t().mm(self._x), slope.sum(0)] if len(self.params) > 1 else [slope.t().mm(self._x)])
        return slope.mm(self.params[0]) if further else slope


class GroupNorm(Layer):
    """nn.GroupNorm."""

    in_float = True

    def forward(self, x: Tensor) -> Tensor:
        """Keeps its input and the groups' moments."""
        self._x, (count, channels) = x, x.shape[:2]
        self._sizes = (count, channels, x[0, 0].numel(), self.module.num_groups)
        weight, bias = self.params or (None, None)
        y, *self._moments = ATEN.native_group_norm.default(x, weight, bias, *self._sizes, self.module.eps)
        return y  # type: ignore[no-any-return]

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """Through its moments."""
        weight, learnt = self.params[0] if self.params else None, bool(self.params)
        into, *own = ATEN.native_group_norm_backward.default(
            slope, self._x, *self._moments, weight, *self._sizes, [further, learnt, learnt]
        )
        self.write(own if learnt else [])
        return into  # type: ignore[no-any-return]


class Relu(Layer):
    """nn.ReLU, written over its input, which no layer before it needs."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps its output."""
        self._y = torch.relu_(x)
        return self._y

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """Where it was open."""
        return ATEN.threshold_backward.grad_input(slope, self._y, 0, grad_input=slope)  # type: ignore[no-any-return]


class MaxPool(Layer):
    """nn.MaxPool2d."""

    takes = IMAGES

    def forward(self, x: Tensor) -> Tensor:
        """Keeps where its maxima were."""
        form = self.module
        self._x, self._how = x, [pair(form.kernel_size), pair(form.stride), pair(form.padding), pair(form.dilation)]
        y, self._where = ATEN.max_pool2d_with_indices.default(x, *self._how, form.ceil_mode)
        return y  # type: ignore[no-any-return]

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """To the maxima."""
        return ATEN.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
            slope, self._x, *self._how, self.module.ceil_mode, self._where
        )


class Flatten(Layer):
    """nn.Flatten, to one row a sample."""

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        self._shape = x.shape
        return x.flatten(1)

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """Channels last again."""
        slope = slope.view(self._shape)
        return slope.contiguous(memory_format=torch.channels_last) if slope.dim() == IMAGES else slope


def pair(value: int | Sequence[int]) -> list[int]:
    """A size for both directions."""
    return [value, value] if isinstance(value, int) else list(value)


LAYERS: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = {
    nn.Conv2d: (Convolution, lambda part: part.padding_mode == "zeros" and not isinstance(part.padding, str)),
    nn.Linear: (Linear, lambda part: True),
    nn.GroupNorm: (GroupNorm, lambda part: True),
    nn.ReLU: (Relu, lambda part: True),
    nn.MaxPool2d: (MaxPool, lambda part: not part.return_indices),
    nn.Flatten: (Flatten, lambda part: (part.start_dim, part.end_dim) == (1, -1)),
}
"""The layers that are known, and in which of their forms."""
