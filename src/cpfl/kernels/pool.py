"""Pooling of many models at once: one kernel on a GPU, plain torch elsewhere.

Pooling is the same in every lane. Axes: N images of all lanes, C channels, H height, W width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cpfl.kernels import add_lanes


@torch.library.custom_op("cpfl::lane_pool", mutates_args=())
def lane_pool(x_NHWC: Tensor, window: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    """Maxima, channels last, and which element of its window each one is."""
    if x_NHWC.is_cuda:
        from cpfl.kernels.triton import pool as kernels

        return kernels.pool(x_NHWC, window, stride, padding)
    border = (0, 0, padding[1], padding[1], padding[0], padding[0])
    padded = nn.functional.pad(x_NHWC, border, value=-torch.inf)
    out, winner = padded.unfold(1, window[0], stride[0]).unfold(2, window[1], stride[1]).flatten(-2).max(-1)
    return out.contiguous(), winner.to(torch.uint8).contiguous()


@lane_pool.register_fake
def _(x_NHWC: Tensor, window: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    sides = zip(x_NHWC.shape[1:3], window, stride, padding, strict=True)
    ho, wo = ((size + 2 * p - k) // s + 1 for size, k, s, p in sides)
    out = x_NHWC.new_empty(x_NHWC.shape[0], ho, wo, x_NHWC.shape[3])
    return out, torch.empty_like(out, dtype=torch.uint8)


@torch.library.custom_op("cpfl::lane_pool_gradients", mutates_args=())
def lane_pool_gradients(
    g_NHWC: Tensor, winner: Tensor, size: list[int], window: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    """The gradient of the input."""
    if g_NHWC.is_cuda:
        from cpfl.kernels.triton import pool as kernels

        return kernels.pool_gradient(g_NHWC, winner, size, window, stride, padding)
    images, ho, wo, channels = g_NHWC.shape
    rows = torch.arange(ho)[:, None, None] * stride[0] + winner // window[1] - padding[0]
    columns = torch.arange(wo)[:, None] * stride[1] + winner % window[1] - padding[1]
    out = g_NHWC.new_zeros(images, size[0] * size[1], channels)
    at = (rows * size[1] + columns).view(images, -1, channels)
    return out.scatter_add_(1, at, g_NHWC.view(images, -1, channels)).view(images, *size, channels)


@lane_pool_gradients.register_fake
def _(g_NHWC: Tensor, winner: Tensor, size: list[int], *_: Any) -> Tensor:
    return g_NHWC.new_empty(g_NHWC.shape[0], *size, g_NHWC.shape[3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, *ctx.sizes = inputs
    ctx.size = list(x.shape[1:3])
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, g_NHWC: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    (winner,) = ctx.saved_tensors
    return lane_pool_gradients(g_NHWC.contiguous(), winner, ctx.size, *ctx.sizes), None, None, None


lane_pool.register_autograd(_backward, setup_context=_save)
add_lanes(lane_pool)
