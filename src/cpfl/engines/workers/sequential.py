"""The training step of a model that is a sequence of plain layers, without autograd.

The order and the bits are autograd's, but for a few sums that are faster in another order (layers.py). Autograd and
modules cost a tenth of a small model's step; here the gradients also go straight into their row. Models with other
layers are left to autograd.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cpfl.engines.workers.layers import LAYERS, Flatten, Layer, MaxPool, Relu
from cpfl.models import State

ATEN = torch.ops.aten
MEAN, IGNORED = 1, -100  # of cross-entropy, as torch numbers them
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(batch, labels) -> mean loss and logits; the gradients of all parameters are written into their row."""


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
