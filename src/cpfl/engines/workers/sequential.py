"""The training step of a model that is a sequence of plain layers, without autograd.

Layers go forward and backward with the operations that autograd would call. The order and the bits are autograd's, but
for the gradients of convolutions' biases. Autograd and modules cost a tenth of a small model's step; here the gradients
also go straight into their row. Models with other layers are left to autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpfl.models import State
from cpfl.models.layout import IMAGE_AXES

ATEN = torch.ops.aten
MEAN, IGNORED = 1, -100  # of cross-entropy, as torch numbers them
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(batch, labels) -> mean loss and logits; the gradients of all parameters are written into their row."""


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
    """nn.Conv2d."""

    input_axes = IMAGE_AXES

    def forward(self, x: Tensor) -> Tensor:
        self._x, form = x, self.module
        bias = self.params[1] if len(self.params) > 1 else None
        return torch.conv2d(x, self.params[0], bias, form.stride, form.padding, form.dilation, form.groups)

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        form = self.module
        known = (gradient, self._x, self.params[0], None, form.stride, form.padding, form.dilation, False, [0, 0])
        into, own, _ = ATEN.convolution_backward.default(*known, form.groups, [further, True, False])
        # The bias's gradient as a plain sum is faster and more exact than in the same call.
        self.write([own, gradient.sum((0, 2, 3))][: len(self.params)])
        return into if further else gradient


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
    """nn.MaxPool2d."""

    input_axes = IMAGE_AXES

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
        self._how = [[size, size] if isinstance(size, int) else list(size) for size in sizes]

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        y, self._where = ATEN.max_pool2d_with_indices.default(x, *self._how, self.module.ceil_mode)
        return y  # type: ignore[no-any-return]

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        return ATEN.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
            gradient, self._x, *self._how, self.module.ceil_mode, self._where
        )


class Flatten(Layer):
    """nn.Flatten to one vector a sample."""

    def forward(self, x: Tensor) -> Tensor:
        self._shape = x.shape
        return x.flatten(1)

    def backward(self, gradient: Tensor, further: bool) -> Tensor:
        gradient = gradient.view(self._shape)
        return gradient.contiguous(memory_format=torch.channels_last) if gradient.dim() == IMAGE_AXES else gradient


LAYERS: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = {
    nn.Conv2d: (Convolution, lambda part: part.padding_mode == "zeros" and not isinstance(part.padding, str)),
    nn.Linear: (Linear, lambda part: True),
    nn.GroupNorm: (GroupNorm, lambda part: True),
    nn.ReLU: (Relu, lambda part: True),
    nn.MaxPool2d: (MaxPool, lambda part: not part.return_indices),
    nn.Flatten: (Flatten, lambda part: (part.start_dim, part.end_dim) == (1, -1)),
}
"""The supported layers, and the condition on their settings."""


def sequential_step(
    module: nn.Module, axes: int, params_P: Tensor, gradients_P: Tensor, views: Callable[[Tensor], State], low: bool
) -> Step | None:
    """The step of a model if it is a sequence of supported layers.

    `axes` are those of a batch, `views` gives a row's tensors by name, `low` computes in bf16.
    """
    named = sequence_of(module, axes)
    if named is None:
        return None
    low_P = torch.zeros_like(params_P, dtype=torch.bfloat16) if low else None
    exact, short, gradients = views(params_P), views(params_P if low_P is None else low_P), views(gradients_P)
    for name, layer in named:
        own = [f"{name}.{key}".lstrip(".") for key, _ in layer.module.named_parameters()]
        layer.params = [(exact if layer.in_float else short)[key] for key in own]
        layer.gradients = [gradients[key] for key in own]
    layers = [layer for _, layer in named]
    first = next(k for k, layer in enumerate(layers) if layer.params)  # layers before it need no gradient
    backward = [(layer, k > first) for k, layer in enumerate(layers) if k >= first][::-1]

    @torch.inference_mode()
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        dtype = x.dtype
        if low_P is not None:
            low_P.copy_(params_P)
            x = x.to(low_P.dtype)
        for layer in layers:
            x = layer.forward(x)
        logits = x.to(dtype)
        logs = torch.log_softmax(logits, 1)
        loss, weight = ATEN.nll_loss_forward.default(logs, y, None, MEAN, IGNORED)
        gradient = ATEN.nll_loss_backward.default(torch.ones_like(loss), logs, y, None, MEAN, IGNORED, weight)
        gradient = ATEN._log_softmax_backward_data.default(gradient, logs, 1, dtype).to(x.dtype)
        for layer, further in backward:
            gradient = layer.backward(gradient, further)
        return loss, logits

    return step


def sequence_of(module: nn.Module, axes: int) -> list[tuple[str, Layer]] | None:
    """The layers by name, in the order in which they are computed; None: one is not supported at its position."""
    found: list[tuple[str, Layer]] = []
    owned: list[Tensor] = []
    for name, part in module.named_modules(remove_duplicate=False):
        if customized(part):
            return None
        if type(part) is nn.Sequential:
            continue
        kind, fits = LAYERS.get(type(part), (None, None))
        if kind is None or fits is None or not fits(part) or kind.input_axes not in (None, axes):
            return None
        owned += part.parameters()
        if kind is Relu and not owned:  # it would write over the samples
            return None
        axes = 2 if kind is Flatten else axes
        found.append((name, kind(part)))
        if kind is MaxPool and len(found) > 1 and isinstance(found[-2][1], Relu):
            found[-2:] = found[:-3:-1]  # ReLU after the maximum gives the same numbers from fewer of them
    unique = len({id(value) for value in owned}) == len(owned)
    return found if unique and owned and axes == 2 else None


def customized(module: nn.Module) -> bool:
    """Whether a layer does not do what its class says: it has hooks, or a forward or parameters of its own."""
    parameters = {name: value for name, value in module._parameters.items() if value is not None}
    changed = any(value._backward_hooks or not value.requires_grad for value in parameters.values())
    hooks = any(getattr(module, name) for name in HOOKS) or "forward" in vars(module)
    return hooks or changed or not parameters.keys() <= {"weight", "bias"}
