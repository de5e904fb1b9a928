"""Layers that run one kernel for all models, where torch would run one kernel for each.

`fit` puts them in place of a model's own Conv2d, MaxPool2d and GroupNorm. A layer is one lane of its operation; under
vmap, over stacked parameters, it becomes all lanes. A model by itself gains too: for one model of this size the kernels
are faster than torch's. Axes: B batch, C channels, H height, W width, S pixels, O outputs, K taps of a side.
"""

import copy

import torch
from torch import Tensor, nn

from cpfl.kernels import conv, norm, pool  # noqa: F401  (they register torch.ops.cpfl)

VECTOR = 4  # channels that are read at once: three are padded to four


def fit(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same model, its parameters under the same names, with the layers of this module where they apply."""
    fitted = copy.deepcopy(module)
    for parent in list(fitted.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Conv2d and _plain(child):
                setattr(parent, name, LaneConv2d(child, dtype))
            elif type(child) is nn.MaxPool2d and child.dilation in (1, (1, 1)) and not child.ceil_mode:
                setattr(parent, name, LaneMaxPool2d(child))
            elif type(child) is nn.GroupNorm:
                setattr(parent, name, LaneGroupNorm(child))
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

    def __init__(self, layer: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        assert isinstance(layer.padding, tuple)
        self.weight, self.bias = layer.weight, layer.bias
        self._padding, self._dtype = layer.padding, dtype

    def forward(self, x_BCHW: Tensor) -> Tensor:
        (rows, columns), unused = self._padding, -x_BCHW.shape[1] % VECTOR
        x_BHWC, w_KKCO = x_BCHW.to(self._dtype).permute(0, 2, 3, 1), self.weight.to(self._dtype).permute(2, 3, 1, 0)
        x_BHWC = nn.functional.pad(x_BHWC, (0, unused, columns, columns, rows, rows)).contiguous()
        w_KKCO = nn.functional.pad(w_KKCO, (0, 0, 0, unused)).contiguous()
        bias = None if self.bias is None else self.bias.to(self._dtype)[None]
        out: Tensor = torch.ops.cpfl.lane_conv(x_BHWC[None], w_KKCO[None], bias)
        return out.squeeze(0).permute(0, 3, 1, 2)


class LaneMaxPool2d(nn.Module):
    """The maximum of every window."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        sizes = (layer.kernel_size, layer.stride, layer.padding)
        self._sizes = [[size, size] if isinstance(size, int) else list(size) for size in sizes]

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = torch.ops.cpfl.lane_pool(x_BCHW.permute(0, 2, 3, 1).contiguous(), *self._sizes)[0]
        return out.permute(0, 3, 1, 2)


class LaneGroupNorm(nn.Module):
    """Group normalization; the output has the input's type."""

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._groups, self._eps = layer.num_groups, layer.eps

    def forward(self, x_BCS: Tensor) -> Tensor:
        x_BSC = x_BCS.movedim(1, -1)
        affine = (None if value is None else value[None] for value in (self.weight, self.bias))
        flat = x_BSC.flatten(1, -2).contiguous()
        out: Tensor = torch.ops.cpfl.lane_norm(flat, *affine, self._groups, self._eps)[0]
        return out.view(x_BSC.shape).movedim(-1, 1)
