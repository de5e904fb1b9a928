"""A chain of plain layers, forward and back with the very operations that autograd would call, in its order.

What autograd and modules do beside the arithmetic takes a tenth of a small model's step; here the slopes also go
straight into their row. Models of other layers are left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.engines.workers.form import IMAGES
from cpfl.models import State

ATEN = torch.ops.aten
MEAN, IGNORED = 1, -100  # of cross-entropy, as torch numbers them
LANES = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8  # floats of a vector
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
            self._stride, self._weight = form.stride, weight
            return torch.conv2d(x, weight, bias, form.stride, form.padding, form.dilation, form.groups)
        self._stride, self._weight = (form.stride[0], self._count), self._spread(weight)
        bias = None if bias is None else bias.repeat(self._count)
        return regrouped(torch.conv2d(x, self._weight, bias, self._stride, form.padding), form.out_channels)

    def backward(self, slope: Tensor, further: bool) -> Tensor:
        """All that is needed in one call."""
        form, biased, count, outputs = self.module, len(self.params) > 1, self._count, len(self._weight)
        into, weight, bias = ATEN.convolution_backward.default(
            slope if count == 1 else regrouped(slope, outputs), self._x, self._weight, [outputs] if biased else None,
            self._stride, form.padding, form.dilation, False, [0, 0], form.groups, [further, True, biased],
        )  # fmt: skip
        if count > 1:
            first, *others = neighbours(weight, count)
            weight = sum(others, first)
            bias = bias.view(count, -1).sum(0) if biased else None
        self.write([weight, bias] if biased else [weight])
        return into  # type: ignore[no-any-return]

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


LAYERS: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = {
    nn.Conv2d: (Convolution, lambda part: part.padding_mode == "zeros" and not isinstance(part.padding, str)),
    nn.Linear: (Linear, lambda part: True),
    nn.GroupNorm: (GroupNorm, lambda part: True),
    nn.ReLU: (Relu, lambda part: True),
    nn.MaxPool2d: (MaxPool, lambda part: not part.return_indices),
    nn.Flatten: (Flatten, lambda part: (part.start_dim, part.end_dim) == (1, -1)),
}
"""The layers that are known, and in which of their forms."""


class Chain:
    """Layers one after the other, their parameters in one row and the slopes of these in another."""

    def __init__(self, layers: list[Layer], params_P: Tensor, low_P: Tensor | None) -> None:
        self._layers, self._params_P, self._low_P = layers, params_P, low_P
        learning = next(k for k, layer in enumerate(layers) if layer.params)
        self._back = [(layer, k > learning) for k, layer in enumerate(layers) if k >= learning][::-1]

    @torch.inference_mode()
    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch and its logits; the slopes lie in their row."""
        dtype, low = x.dtype, self._low_P
        if low is not None:
            low.copy_(self._params_P)
            x = x.to(low.dtype)
        for layer in self._layers:
            x = layer.forward(x)
        logits = x.to(dtype)
        logs = torch.log_softmax(logits, 1)
        loss, weight = ATEN.nll_loss_forward.default(logs, y, None, MEAN, IGNORED)
        slope = ATEN.nll_loss_backward.default(torch.ones_like(loss), logs, y, None, MEAN, IGNORED, weight)
        slope = ATEN._log_softmax_backward_data.default(slope, logs, 1, dtype).to(x.dtype)
        for layer, further in self._back:
            slope = layer.backward(slope, further)
        return loss, logits


def chain(
    module: nn.Module, axes: int, params_P: Tensor, views: Callable[[Tensor], State], slopes_P: Tensor, low: bool
) -> Chain | None:
    """The chain that a model is, if it is one: of inputs with so many axes, of samples and their own. `views` are a
    row's tensors by name; `low` computes in bf16."""
    known = layers_of(module, axes)
    if known is None:
        return None
    low_P = torch.zeros_like(params_P, dtype=torch.bfloat16) if low else None
    exact, short, slopes = views(params_P), views(params_P if low_P is None else low_P), views(slopes_P)
    for name, layer in known:
        own = [f"{name}.{key}" for key, _ in layer.module.named_parameters()]
        layer.params = [(exact if layer.in_float else short)[key] for key in own]
        layer.slopes = [slopes[key] for key in own]
    return Chain([layer for _, layer in known], params_P, low_P)


def layers_of(module: nn.Module, axes: int) -> list[tuple[str, Layer]] | None:
    """The layers by name, in the order in which they are done; None: one of them is not known, or stands elsewhere."""
    found: list[tuple[str, Layer]] = []
    owned: list[Tensor] = []
    for name, part in parts_of(module):
        kind, fits = LAYERS.get(type(part), (None, None))
        if kind is None or fits is None or not fits(part) or kind.takes not in (None, axes) or hooked(part):
            return None
        owned += part.parameters()
        if kind is Relu and not owned:  # it would write over the samples
            return None
        axes = 2 if kind is Flatten else axes
        found.append((name, kind(part)))
        if kind is MaxPool and len(found) > 1 and isinstance(found[-2][1], Relu):
            found[-2:] = found[:-3:-1]  # cut at zero after the maximum: the same numbers from fewer of them
    alone = len({id(value) for value in owned}) == len(owned) and all(value.requires_grad for value in owned)
    return found if alone and owned and not hooked(module) and axes == 2 else None


def parts_of(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts of a sequence, of sequences within it too; anything else is one part."""
    if type(module) is not nn.Sequential or (name and hooked(module)):
        yield name, module
        return
    for key, part in module._modules.items():
        if part is not None:
            yield from parts_of(part, f"{name}.{key}" if name else key)


def hooked(module: nn.Module) -> bool:
    """Whether something is called beside it."""
    return any(getattr(module, hooks) for hooks in HOOKS)


def pair(value: int | Sequence[int]) -> list[int]:
    """A size for both directions."""
    return [value, value] if isinstance(value, int) else list(value)
