"""Layers that run one kernel for all models, where torch would run one kernel for each.

`fit` puts them in place of a model's own Conv2d, MaxPool2d and GroupNorm. The model is then called under vmap, over
stacked parameters, or by itself (`alone`): the kernels are faster than torch's for one model of this size too.
"""

import copy

import torch
from torch import Tensor, nn

from cpfl.kernels import conv, norm, pool


def fit(module: nn.Module, dtype: torch.dtype, *, alone: bool = False) -> nn.Module:
    """The same model, its parameters under the same names, with the layers of this module where they apply."""
    fitted = copy.deepcopy(module)
    for parent in list(fitted.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Conv2d and _plain(child):
                setattr(parent, name, LaneConv2d(child, dtype, alone))
            elif type(child) is nn.MaxPool2d and child.dilation in (1, (1, 1)) and not child.ceil_mode:
                setattr(parent, name, LaneMaxPool2d(child, alone))
            elif type(child) is nn.GroupNorm:
                setattr(parent, name, LaneGroupNorm(child, alone))
    return fitted


def _plain(layer: nn.Conv2d) -> bool:
    return (
        layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and isinstance(layer.padding, tuple)
        and all(p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True))
    )


class LaneConv2d(nn.Module):
    """A convolution of stride 1 that computes in `dtype`."""

    def __init__(self, layer: nn.Conv2d, dtype: torch.dtype, alone: bool) -> None:
        super().__init__()
        assert isinstance(layer.padding, tuple)
        self.weight, self.bias = layer.weight, layer.bias
        self._padding, self._dtype, self._alone = list(layer.padding), dtype, alone

    def forward(self, x: Tensor) -> Tensor:
        x, weight = x.to(self._dtype), self.weight.to(self._dtype)
        bias = None if self.bias is None else self.bias.to(self._dtype)
        if self._alone:
            return conv.conv_all(x[None], weight[None], None if bias is None else bias[None], self._padding)[0]
        return torch.ops.cpfl.conv(x, weight, bias, self._padding)  # type: ignore[no-any-return]


class LaneMaxPool2d(nn.Module):
    """The maximum of every window."""

    def __init__(self, layer: nn.MaxPool2d, alone: bool) -> None:
        super().__init__()
        sizes = (layer.kernel_size, layer.stride, layer.padding)
        self._sizes = [[size, size] if isinstance(size, int) else list(size) for size in sizes]
        self._alone = alone

    def forward(self, x: Tensor) -> Tensor:
        if self._alone:
            return pool.pool_all(x, *self._sizes)
        return torch.ops.cpfl.pool(x, *self._sizes)  # type: ignore[no-any-return]


class LaneGroupNorm(nn.Module):
    """Group normalisation; the output has the input's type."""

    def __init__(self, layer: nn.GroupNorm, alone: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._groups, self._eps, self._alone = layer.num_groups, layer.eps, alone

    def forward(self, x: Tensor) -> Tensor:
        if self._alone:
            w, bias = (None if value is None else value[None] for value in (self.weight, self.bias))
            return norm.norm_all(x, w, bias, self._groups, self._eps)
        return torch.ops.cpfl.norm(x, self.weight, self.bias, self._groups, self._eps)  # type: ignore[no-any-return]
