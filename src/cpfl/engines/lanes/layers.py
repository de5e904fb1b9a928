"""Layers that know lanes: under vmap they run one kernel for all lanes where torch would run one a lane.

`fit` puts them in place of a model's own Conv2d, MaxPool2d and GroupNorm. Axes: L lanes, B batch, C channels, H height,
W width, O outputs, K taps of a side.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

Pair = tuple[int, int]
VECTOR = 4  # channels that are read at once: three are filled up to four


def fit(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same model, its parameters under the same names, with lane layers where there is one."""
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


def _plain(conv: nn.Conv2d) -> bool:
    return (
        conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and isinstance(conv.padding, tuple)
        and all(p < k for p, k in zip(conv.padding, conv.kernel_size, strict=True))
    )


class LaneConv2d(nn.Module):
    """A convolution of stride 1; `dtype` is that of its arithmetic."""

    def __init__(self, conv: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        assert isinstance(conv.padding, tuple)
        self.weight, self.bias = conv.weight, conv.bias
        self._padding, self._dtype = list(conv.padding), dtype

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self._dtype)
        return torch.ops.cpfl.conv(x.to(self._dtype), self.weight.to(self._dtype), bias, self._padding)  # type: ignore[no-any-return]


class LaneMaxPool2d(nn.Module):
    """The maximum of every window."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        sizes = (pool.kernel_size, pool.stride, pool.padding)
        self._sizes = [[size, size] if isinstance(size, int) else list(size) for size in sizes]

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.cpfl.pool(x, *self._sizes)  # type: ignore[no-any-return]


class LaneGroupNorm(nn.Module):
    """Group normalisation written out, so that the compiler fuses it and any memory order will do."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self._groups, self._eps = norm.num_groups, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), self._groups, -1, *x.shape[2:]).to(_summed(x))
        axes = tuple(range(2, grouped.dim()))
        variance, mean = torch.var_mean(grouped, axes, correction=0, keepdim=True)
        out = ((grouped - mean) * torch.rsqrt(variance + self._eps)).flatten(1, 2)
        if self.weight is not None:
            beside = (-1, *([1] * (x.dim() - 2)))
            out = out * self.weight.view(beside) + self.bias.view(beside)
        return out


# What a model calls: the layer of one lane. Under vmap it becomes the layer of all lanes below.


@torch.library.custom_op("cpfl::conv", mutates_args=())
def conv(x_BCHW: Tensor, w_OCKK: Tensor, bias_O: Tensor | None, padding: list[int]) -> Tensor:
    """One lane's convolution."""
    return nn.functional.conv2d(x_BCHW, w_OCKK, bias_O, padding=padding)


@conv.register_fake
def _(x_BCHW: Tensor, w_OCKK: Tensor, bias_O: Tensor | None, padding: list[int]) -> Tensor:
    return nn.functional.conv2d(x_BCHW, w_OCKK, bias_O, padding=padding)


@conv.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, padding: list[int]) -> tuple[Tensor, int]:
    x, w = (_first(value, dim, info.batch_size) for value, dim in ((x, dims[0]), (w, dims[1])))
    bias = None if bias is None else _first(bias, dims[2], info.batch_size).contiguous()
    spare = -x.shape[2] % VECTOR
    x_LBHWC = nn.functional.pad(x.permute(0, 1, 3, 4, 2), (0, spare, padding[1], padding[1], padding[0], padding[0]))
    w_LKKCO = nn.functional.pad(w.permute(0, 3, 4, 2, 1), (0, 0, 0, spare))
    return lane_conv(x_LBHWC.contiguous(), w_LKKCO.contiguous(), bias).permute(0, 1, 4, 2, 3), 0


@torch.library.custom_op("cpfl::pool", mutates_args=())
def pool(x_BCHW: Tensor, window: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """One lane's pooling."""
    return nn.functional.max_pool2d(x_BCHW, window, stride, padding)


@pool.register_fake
def _(x_BCHW: Tensor, window: list[int], stride: list[int], padding: list[int]) -> Tensor:
    return nn.functional.max_pool2d(x_BCHW, window, stride, padding)


@pool.register_vmap
def _(info: Any, dims: Any, x: Tensor, window: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, int]:
    x_NHWC = _first(x, dims[0], info.batch_size).flatten(0, 1).permute(0, 2, 3, 1).contiguous()
    out_NHWC, _ = lane_pool(x_NHWC, window, stride, padding)
    return out_NHWC.permute(0, 3, 1, 2).unflatten(0, (info.batch_size, -1)), 0


def _first(value: Tensor, dim: int | None, lanes: int) -> Tensor:
    return value.expand(lanes, *value.shape) if dim is None else value.movedim(dim, 0)


# The layers of all lanes: kernels of our own on a GPU, plain torch elsewhere.


@torch.library.custom_op("cpfl::lane_conv", mutates_args=())
def lane_conv(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    """A convolution in every lane, channels last, without padding."""
    if x_LBHWC.is_cuda:
        from cpfl.engines.lanes import kernels

        return kernels.convolve(x_LBHWC, w_LKKCO, bias_LO)
    lanes = []
    for k, (x, w) in enumerate(zip(x_LBHWC, w_LKKCO, strict=True)):
        bias = None if bias_LO is None else bias_LO[k]
        lanes.append(nn.functional.conv2d(x.movedim(-1, 1), w.permute(3, 2, 0, 1), bias))
    return torch.stack(lanes).movedim(2, -1).contiguous()


@lane_conv.register_fake
def _(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    lanes, batch, height, width, _ = x_LBHWC.shape
    kh, kw, _, outputs = w_LKKCO.shape[1:]
    return x_LBHWC.new_empty(lanes, batch, height - kh + 1, width - kw + 1, outputs)


@torch.library.custom_op("cpfl::lane_conv_slopes", mutates_args=())
def lane_conv_slopes(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    """The gradient of the weights in every lane, (L, K, K, C, O)."""
    if x_LBHWC.is_cuda:
        from cpfl.engines.lanes import kernels

        return kernels.weight_gradient(x_LBHWC, g_LBHWO)
    lanes = []
    for x, g in zip(x_LBHWC, g_LBHWO, strict=True):
        shape = (g.shape[-1], x.shape[-1], *_taps(x_LBHWC, g_LBHWO))
        slopes = conv2d_weight(x.movedim(-1, 1), shape, g.movedim(-1, 1))  # type: ignore[no-untyped-call]
        lanes.append(slopes.permute(2, 3, 1, 0))
    return torch.stack(lanes).to(_summed(x_LBHWC)).contiguous()


@lane_conv_slopes.register_fake
def _(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    sizes = (x_LBHWC.shape[0], *_taps(x_LBHWC, g_LBHWO), x_LBHWC.shape[-1], g_LBHWO.shape[-1])
    return x_LBHWC.new_empty(sizes, dtype=_summed(x_LBHWC))


def _taps(x_LBHWC: Tensor, g_LBHWO: Tensor) -> list[int]:
    return [size - out + 1 for size, out in zip(x_LBHWC.shape[2:4], g_LBHWO.shape[2:4], strict=True)]


def _keep_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias = inputs
    ctx.save_for_backward(x, w)
    ctx.biased = bias is not None


def _conv_backward(ctx: Any, g_LBHWO: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    x, w = ctx.saved_tensors
    g = g_LBHWO.contiguous()
    back = None
    if ctx.needs_input_grad[0]:  # the same convolution, over a border of zeros and with the weights turned around
        kh, kw = w.shape[1:3]
        bordered = nn.functional.pad(g, (0, 0, kw - 1, kw - 1, kh - 1, kh - 1))
        back = lane_conv(bordered, w.flip(1, 2).transpose(3, 4).contiguous(), None)
    slopes = lane_conv_slopes(x, g).to(w.dtype)
    return back, slopes, g.sum((1, 2, 3), dtype=_summed(g)).to(g.dtype) if ctx.biased else None


lane_conv.register_autograd(_conv_backward, setup_context=_keep_conv)


@torch.library.custom_op("cpfl::lane_pool", mutates_args=())
def lane_pool(x_NHWC: Tensor, window: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    """Maxima, channels last, and which element of its window each one is."""
    if x_NHWC.is_cuda:
        from cpfl.engines.lanes import kernels

        return kernels.pool(x_NHWC, _pair(window), _pair(stride), _pair(padding))
    out, at = nn.functional.max_pool2d(x_NHWC.movedim(-1, 1), window, stride, padding, return_indices=True)
    rows = torch.arange(out.shape[2], device=out.device)[:, None] * stride[0] - padding[0]
    columns = torch.arange(out.shape[3], device=out.device) * stride[1] - padding[1]
    width = x_NHWC.shape[2]
    which = (at // width - rows) * window[1] + at % width - columns
    return out.movedim(1, -1).contiguous(), which.movedim(1, -1).to(torch.uint8).contiguous()


@lane_pool.register_fake
def _(x_NHWC: Tensor, window: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    sides = zip(x_NHWC.shape[1:3], window, stride, padding, strict=True)
    ho, wo = ((size + 2 * p - k) // s + 1 for size, k, s, p in sides)
    out = x_NHWC.new_empty(x_NHWC.shape[0], ho, wo, x_NHWC.shape[3])
    return out, torch.empty_like(out, dtype=torch.uint8)


@torch.library.custom_op("cpfl::lane_pool_slopes", mutates_args=())
def lane_pool_slopes(
    g_NHWC: Tensor, winner: Tensor, size: list[int], window: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    """The gradient of what was pooled."""
    if g_NHWC.is_cuda:
        from cpfl.engines.lanes import kernels

        return kernels.pool_gradient(g_NHWC, winner, _pair(size), _pair(window), _pair(stride), _pair(padding))
    images, ho, wo, channels = g_NHWC.shape
    rows = torch.arange(ho)[:, None, None] * stride[0] + winner // window[1] - padding[0]
    columns = torch.arange(wo)[:, None] * stride[1] + winner % window[1] - padding[1]
    out = g_NHWC.new_zeros(images, size[0] * size[1], channels)
    at = (rows * size[1] + columns).view(images, -1, channels)
    return out.scatter_add_(1, at, g_NHWC.view(images, -1, channels)).view(images, *size, channels)


@lane_pool_slopes.register_fake
def _(
    g_NHWC: Tensor, winner: Tensor, size: list[int], window: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    return g_NHWC.new_empty(g_NHWC.shape[0], *size, g_NHWC.shape[3])


def _keep_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *ctx.sizes = inputs
    ctx.size = list(x.shape[1:3])
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _pool_backward(ctx: Any, g_NHWC: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    (winner,) = ctx.saved_tensors
    return lane_pool_slopes(g_NHWC.contiguous(), winner, ctx.size, *ctx.sizes), None, None, None


lane_pool.register_autograd(_pool_backward, setup_context=_keep_pool)


def _summed(x: Tensor) -> torch.dtype:
    """The type in which long sums are kept."""
    return torch.promote_types(x.dtype, torch.float32)


def _pair(sizes: list[int]) -> Pair:
    return sizes[0], sizes[1]
