"""A model that is a chain of plain layers: its step without autograd, in the same order and with the same bits, but
for a few sums that another order makes quicker (layers.py).

What autograd and modules do beside the arithmetic takes a tenth of a small model's step; here the slopes also go
straight into their row. Models of other layers are left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from cpfl.engines.workers.layers import LAYERS, Flatten, Layer, MaxPool, Relu
from cpfl.models import State

ATEN = torch.ops.aten
MEAN, IGNORED = 1, -100  # of cross-entropy, as torch numbers them
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        own = [f"{name}.{key}".lstrip(".") for key, _ in layer.module.named_parameters()]
        layer.params = [(exact if layer.in_float else short)[key] for key in own]
        layer.slopes = [slopes[key] for key in own]
    return Chain([layer for _, layer in known], params_P, low_P)


def layers_of(module: nn.Module, axes: int) -> list[tuple[str, Layer]] | None:
    """The layers by name, in the order in which they are done; None: one of them is not known, or stands elsewhere."""
    found: list[tuple[str, Layer]] = []
    owned: list[Tensor] = []
    for name, part in parts_of(module):
        kind, fits = LAYERS.get(type(part), (None, None))
        if kind is None or fits is None or not fits(part) or kind.takes not in (None, axes) or changed(part):
            return None
        owned += part.parameters()
        if kind is Relu and not owned:  # it would write over the samples
            return None
        axes = 2 if kind is Flatten else axes
        found.append((name, kind(part)))
        if kind is MaxPool and len(found) > 1 and isinstance(found[-2][1], Relu):
            found[-2:] = found[:-3:-1]  # cut at zero after the maximum: the same numbers from fewer of them
    alone = len({id(value) for value in owned}) == len(owned)
    return found if alone and owned and not changed(module) and axes == 2 else None


def parts_of(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The parts of a sequence, of sequences within it too; anything else is one part."""
    if type(module) is not nn.Sequential or (name and changed(module)):
        yield name, module
        return
    for key, part in module._modules.items():
        if part is not None:
            yield from parts_of(part, f"{name}.{key}" if name else key)


def changed(module: nn.Module) -> bool:
    """Whether it does something else than its class says: by hooks, by a forward or parameters of its own."""
    hooks = any(getattr(module, name) for name in HOOKS) or "forward" in vars(module)
    parameters = module._parameters.items()
    other = any(value is not None and name not in ("weight", "bias") for name, value in parameters)
    return hooks or other or any(v is not None and (v._backward_hooks or not v.requires_grad) for _, v in parameters)
