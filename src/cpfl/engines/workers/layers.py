"""Layers, forward and back with the very operations that autograd would call; each keeps what its way back needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.engines.workers.form import IMAGES

ATEN = torch.ops.aten
BY_TWO = [[2, 2], [2, 2], [0, 0], [1, 1]]  # a pooling's window, steps, padding and dilation
FEW = 8  # channels
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
    """nn.Conv2d. Where its outputs fill less than half of a vector, neighbours of a row are computed together; so are
    the slopes of its inputs."""

    takes = IMAGES
    _kernels: Wide | None = None
    _turned: Wide | None = None  # kernels for the slope of the input

    def forward(self, x: Tensor) -> Tensor:
        """Keeps its input."""
        form, weight, bias = self.module, self.params[0], self.params[1] if len(self.params) > 1 else None
        columns = x.shape[3] + 2 * form.padding[1] - form.kernel_size[1] + 1
        self._x, self._count = x, together(form, x, form.out_channels, columns)
        if self._count == 1:
            return torch.conv2d(x, weight, bias, form.stride, form.padding, form.dilation, form.groups)
        self._kernels = Wide.of(weight, self._count, self._kernels)
        bias = None if bias is None else bias.expand(self._count, -1).reshape(-1)
        stride = (form.stride[0], self._count)
        wide = torch.conv2d(x, self._kernels.all, bias, stride, form.padding, form.dilation)
        return regrouped(wide, form.out_channels)

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """In one call, but for what neighbours share and the bias's: a plain sum is quicker and more exact."""
        weight, stride = self.params[0], self.module.stride
        into = self._into(slope) if further else slope
        if self._count == 1:
            found, own = self._slopes(slope, weight, stride, [into is None, True])
        else:
            own = self._own(slope)
            found = self._slopes(slope, weight, stride, [True, False])[0] if into is None else slope
        self.write([own, slope.sum((0, 2, 3))] if len(self.params) > 1 else [own])
        return found if into is None else into

    def _own(self, slope: Tensor) -> Tensor:
        """The kernels' from neighbours."""
        assert self._kernels is not None
        kernels, stride = self._kernels.all, (self.module.stride[0], self._count)
        found = self._slopes(regrouped(slope, kernels.shape[0]), kernels, stride, [False, True])[1]
        return each(found, self._count).sum(0)

    def _into(self, slope: Tensor) -> Tensor | None:
        """The input's from neighbours: a convolution with the kernels turned round; None: there are none."""
        form, weight = self.module, self.params[0]
        count = together(form, slope, form.in_channels, self._x.shape[3])
        if count == 1 or form.stride[0] > 1:
            return None
        edges = [d * (k - 1) - p for d, k, p in zip(form.dilation, form.kernel_size, form.padding, strict=True)]
        if min(edges) < 0:
            return None
        self._turned = Wide.of(weight.flip(2, 3).transpose(0, 1), count, self._turned)
        wide = torch.conv2d(slope, self._turned.all, None, (1, count), edges, form.dilation)
        return regrouped(wide, form.in_channels)

    def _slopes(self, slope: Tensor, weight: Tensor, stride: Sequence[int], wanted: list[bool]) -> list[Tensor]:
        form, known = self.module, (slope, self._x, weight, None, stride, self.module.padding)
        found = ATEN.convolution_backward.default(*known, form.dilation, False, [0, 0], form.groups, [*wanted, False])
        return list(found[:2])


@dataclass(frozen=True)
class Wide:
    """Kernels for neighbours of a row: as many for each of them, every one shifted by one column in a window that is
    so much wider, with steps of as many columns. With channels last the output is the same row of numbers."""

    all: Tensor
    each: Tensor  # of each neighbour, in the same memory; between them stays nothing

    @classmethod
    def of(cls, weight: Tensor, count: int, last: Wide | None) -> Wide:
        """Of these weights, in the memory of the last ones if they fit."""
        outputs, inputs, height, width = weight.shape
        shape = count * outputs, inputs, height, width + count - 1
        if last is None or last.all.shape != shape:
            wide = weight.new_zeros(shape).contiguous(memory_format=torch.channels_last)
            last = cls(wide, each(wide, count))
        last.each.copy_(weight)
        return last


def each(wide: Tensor, count: int) -> Tensor:
    """The kernels of each of so many neighbours: a view."""
    (kernels, inputs, height, width), (step, *others) = wide.shape, wide.stride()
    shape = (count, kernels // count, inputs, height, width - count + 1)
    return wide.as_strided(shape, (kernels // count * step + others[2], step, *others))


def together(form: nn.Conv2d, x: Tensor, channels: int, columns: int) -> int:
    """How many neighbours of a row of so many columns are computed together; in bf16 it gains nothing."""
    plain = form.groups == form.stride[1] == form.dilation[1] == 1 and form.kernel_size[1] > 1
    most = LANES // channels if plain and x.dtype != torch.bfloat16 else 1
    return next((count for count in range(most, 1, -1) if columns % count == 0), 1)


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
        if slope.dtype == self.slopes[0].dtype:
            torch.mm(slope.t(), self._x, out=self.slopes[0])
            for place in self.slopes[1:]:
                torch.sum(slope, 0, out=place)
        else:
            self.write([slope.t().mm(self._x), slope.sum(0)][: len(self.params)])
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
    """nn.MaxPool2d. Of few channels, two by two, it is done in halves: torch would take them one by one."""

    takes = IMAGES

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._how = [pair(value) for value in (module.kernel_size, module.stride, module.padding, module.dilation)]

    def forward(self, x: Tensor) -> Tensor:
        """Keeps where its maxima were."""
        self._x = x
        self._halves: list[tuple[int, Tensor, Tensor]] = []
        if x.shape[1] < FEW and self._how == BY_TWO and not any(side % 2 for side in x.shape[2:]):
            return self._halved(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y, self._where = ATEN.max_pool2d_with_indices.default(x, *self._how, self.module.ceil_mode)
        return y  # type: ignore[no-any-return]

    def _halved(self, x_BHWC: Tensor) -> Tensor:
        # Columns first takes of equal maxima the one that torch takes. Rows first is faster, and differs where upper
        # right and lower left agree in all of float32's 24 bits: by rounding, that is. In bf16 they often do.
        for axis in (1, 2) if x_BHWC.dtype == torch.float32 else (2, 1):
            sides = x_BHWC.shape
            first, second = x_BHWC.view(*sides[:axis], -1, 2, *sides[axis + 1 :]).unbind(axis + 1)
            self._halves.append((axis, first, second))
            x_BHWC = torch.maximum(first, second)
        return x_BHWC

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """To the maxima."""
        if not self._halves:
            return ATEN.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
                slope, self._x, *self._how, self.module.ceil_mode, self._where
            )
        slope = slope.permute(0, 2, 3, 1)
        for axis, first, second in reversed(self._halves):
            later = ATEN.threshold_backward.default(slope, second - first, 0)
            slope = torch.stack([slope - later, later], axis + 1).flatten(axis, axis + 1)
        return slope.permute(0, 3, 1, 2)


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
