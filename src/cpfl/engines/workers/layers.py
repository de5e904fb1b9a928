"""Layers, forward and backward with the operations that autograd would call, for `sequential.py`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.models.layout import IMAGE_AXES

ATEN = torch.ops.aten
BY_TWO = [[2, 2], [2, 2], [0, 0], [1, 1]]  # a pooling's window, stride, padding and dilation
FEW_CHANNELS = 8
VECTOR = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8  # floats of a vector


class Layer:
    """One layer; `forward` stores what `backward` needs."""

    input_axes: int | None = None  # None: any
    in_float = False  # its parameters stay in full precision under bf16

    def __init__(self, module: Any) -> None:
        self.module = module
        self.params: list[Tensor] = []
        self.gradients: list[Tensor] = []  # where theirs are written

    def forward(self, x: Tensor) -> Tensor:
        """The output of an input."""
        raise NotImplementedError

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        """The gradient of the input, where a layer before it needs it; the parameters' go into `gradients`."""
        raise NotImplementedError

    def write(self, gradients: Sequence[Tensor]) -> None:
        """Store the gradients of the parameters."""
        for target, gradient in zip(self.gradients, gradients, strict=True):
            target.copy_(gradient)


class Convolution(Layer):
    """nn.Conv2d. Where the channels fill less than half of a CPU's vector, neighbouring columns are computed together.

    The kernels are then stored once for each neighbour, each copy shifted by one column in a wider window. With that
    many columns as stride and channels last, the output is the same row of numbers.
    """

    input_axes = IMAGE_AXES
    _wide: Tensor | None = None  # kernels for all neighbours, zero beside each copy

    def forward(self, x: Tensor) -> Tensor:
        form, weight, bias = self.module, self.params[0], self.params[1] if len(self.params) > 1 else None
        self._x, self._stride, self._count = x, form.stride, together(form, x)
        if self._count > 1:
            weight, self._stride = self._widened(weight), (form.stride[0], self._count)
            bias = None if bias is None else bias.expand(self._count, -1).reshape(-1)
        self._kernels = weight
        y = torch.conv2d(x, weight, bias, self._stride, form.padding, form.dilation, form.groups)
        return regrouped(y, form.out_channels) if self._count > 1 else y

    def _widened(self, weight: Tensor) -> Tensor:
        if self._wide is None:
            outputs, inputs, height, width = weight.shape
            wide = weight.new_zeros(self._count * outputs, inputs, height, width + self._count - 1)
            self._wide = wide.contiguous(memory_format=torch.channels_last)
            self._copies = neighbours(self._wide, self._count)
        self._copies.copy_(weight)
        return self._wide

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        form, grouped = self.module, regrouped(gradient, len(self._kernels)) if self._count > 1 else gradient
        known = (grouped, self._x, self._kernels, None, self._stride, form.padding, form.dilation, False, [0, 0])
        into, own, _ = ATEN.convolution_backward.default(*known, form.groups, [further, True, False])
        if self._count > 1:
            own = neighbours(own, self._count).sum(0)
        # The bias's gradient as a plain sum is faster and more exact than in the same call.
        self.write([own, gradient.sum((0, 2, 3))][: len(self.params)])
        return into if further else gradient


def neighbours(wide: Tensor, count: int) -> Tensor:
    """The kernels of each neighbour, a view."""
    (kernels, inputs, height, width), (step, *others) = wide.shape, wide.stride()
    shape = (count, kernels // count, inputs, height, width - count + 1)
    return wide.as_strided(shape, (kernels // count * step + others[2], step, *others))


def together(form: nn.Conv2d, x: Tensor) -> int:
    """How many neighbouring columns are computed together; in bf16 it gains nothing."""
    plain = form.groups == form.stride[1] == form.dilation[1] == 1 and form.kernel_size[1] > 1
    most = VECTOR // form.out_channels if plain and x.dtype != torch.bfloat16 else 1
    columns = x.shape[3] + 2 * int(form.padding[1]) - form.kernel_size[1] + 1
    return next((count for count in range(most, 1, -1) if columns % count == 0), 1)


def regrouped(images: Tensor, channels: int) -> Tensor:
    """The same rows of numbers, as pixels of so many channels."""
    count, _, height, _ = images.shape
    return images.permute(0, 2, 3, 1).reshape(count, height, -1, channels).permute(0, 3, 1, 2)


class Linear(Layer):
    """nn.Linear on one vector a sample."""

    input_axes = 2

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return nn.functional.linear(x, *self.params)

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        if gradient.dtype == self.gradients[0].dtype:
            torch.mm(gradient.t(), self._x, out=self.gradients[0])
            for target in self.gradients[1:]:
                torch.sum(gradient, 0, out=target)
        else:
            self.write([gradient.t().mm(self._x), gradient.sum(0)][: len(self.params)])
        return gradient.mm(self.params[0]) if further else gradient


class GroupNorm(Layer):
    """nn.GroupNorm."""

    in_float = True

    def forward(self, x: Tensor) -> Tensor:
        self._x, (count, channels) = x, x.shape[:2]
        self._sizes = (count, channels, x[0, 0].numel(), self.module.num_groups)
        weight, bias = self.params or (None, None)
        y, *self._moments = ATEN.native_group_norm.default(x, weight, bias, *self._sizes, self.module.eps)
        return y  # type: ignore[no-any-return]

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        weight, learnt = self.params[0] if self.params else None, bool(self.params)
        into, *own = ATEN.native_group_norm_backward.default(
            gradient, self._x, *self._moments, weight, *self._sizes, [further, learnt, learnt]
        )
        self.write(own if learnt else [])
        return into  # type: ignore[no-any-return]


class Relu(Layer):
    """nn.ReLU in place: no layer before it needs its own output."""

    def forward(self, x: Tensor) -> Tensor:
        self._y = torch.relu_(x)
        return self._y

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        return ATEN.threshold_backward.grad_input(gradient, self._y, 0, grad_input=gradient)  # type: ignore[no-any-return]


class MaxPool(Layer):
    """nn.MaxPool2d. Two by two over few channels it takes rows and columns separately: torch would not vectorize."""

    input_axes = IMAGE_AXES

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._how = [pair(value) for value in (module.kernel_size, module.stride, module.padding, module.dilation)]

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        self._halves: list[tuple[int, Tensor, Tensor]] = []
        if x.shape[1] < FEW_CHANNELS and self._how == BY_TWO and not any(side % 2 for side in x.shape[2:]):
            return self._halved(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y, self._where = ATEN.max_pool2d_with_indices.default(x, *self._how, self.module.ceil_mode)
        return y  # type: ignore[no-any-return]

    def _halved(self, x_BHWC: Tensor) -> Tensor:
        # Columns first chooses among equal maxima as torch does. Rows first is faster, and differs where upper right
        # and lower left agree in all of float32's 24 bits, which is by rounding. In bf16 they often agree.
        for axis in (1, 2) if x_BHWC.dtype == torch.float32 else (2, 1):
            sides = x_BHWC.shape
            first, second = x_BHWC.view(*sides[:axis], -1, 2, *sides[axis + 1 :]).unbind(axis + 1)
            self._halves.append((axis, first, second))
            x_BHWC = torch.maximum(first, second)
        return x_BHWC

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        if not self._halves:
            return ATEN.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
                gradient, self._x, *self._how, self.module.ceil_mode, self._where
            )
        gradient = gradient.permute(0, 2, 3, 1)
        for axis, first, second in reversed(self._halves):
            later = ATEN.threshold_backward.default(gradient, second - first, 0)
            gradient = torch.stack([gradient - later, later], axis + 1).flatten(axis, axis + 1)
        return gradient.permute(0, 3, 1, 2)


class Flatten(Layer):
    """nn.Flatten to one vector a sample."""

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        return x.flatten(1)

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        gradient = gradient.view(self._shape)
        return gradient.contiguous(memory_format=torch.channels_last) if gradient.dim() == IMAGE_AXES else gradient


def pair(value: int | Sequence[int]) -> list[int]:
    """Height and width."""
    return [value, value] if isinstance(value, int) else list(value)


LAYERS: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = {
    nn.Conv2d: (Convolution, lambda part: part.padding_mode == "zeros" and not isinstance(part.padding, str)),
    nn.Linear: (Linear, lambda part: True),
    nn.GroupNorm: (GroupNorm, lambda part: True),
    nn.ReLU: (Relu, lambda part: True),
    nn.MaxPool2d: (MaxPool, lambda part: not part.return_indices),
    nn.Flatten: (Flatten, lambda part: (part.start_dim, part.end_dim) == (1, -1)),
}
"""The supported layers, and the condition on their settings."""
