"""Group normalisation of many models at once: one kernel on a GPU, plain torch elsewhere.

Axes: L lanes, N images of all lanes, S pixels of an image, C channels, G groups.
"""

from typing import Any

import torch
from torch import Tensor

from cpfl.kernels import add_lanes, sum_dtype

LARGEST = 16_384  # numbers of one group that a kernel holds; torch computes larger ones


@torch.library.custom_op("cpfl::lane_norm", mutates_args=())
def lane_norm(
    x_NSC: Tensor, w_LC: Tensor | None, bias_LC: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised images, and of every image and group the mean and the inverse of the deviation."""
    if _by_kernel(x_NSC, groups):
        from cpfl.kernels.triton import norm as kernels

        return kernels.normalise(x_NSC, w_LC, bias_LC, groups, eps)
    grouped = _grouped(x_NSC, groups)
    variance, mean = torch.var_mean(grouped, (1, 3), correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    out = ((grouped - mean) * scale).flatten(2)
    if w_LC is not None:
        assert bias_LC is not None
        out = out * _per_image(w_LC, len(out)) + _per_image(bias_LC, len(out))
    return out.to(x_NSC.dtype), mean.view(-1, groups), scale.view(-1, groups)


@lane_norm.register_fake
def _(x_NSC: Tensor, w_LC: Any, bias_LC: Any, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x_NSC.new_empty(len(x_NSC), groups, dtype=sum_dtype(x_NSC))
    return torch.empty_like(x_NSC), mean, torch.empty_like(mean)


@torch.library.custom_op("cpfl::lane_norm_gradients", mutates_args=())
def lane_norm_gradients(
    g_NSC: Tensor, x_NSC: Tensor, w_LC: Tensor | None, mean_NG: Tensor, scale_NG: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the input, and each image's share (N, C) of those of the weights and the bias."""
    groups = mean_NG.shape[1]
    if _by_kernel(x_NSC, groups):
        from cpfl.kernels.triton import norm as kernels

        return kernels.gradients(g_NSC, x_NSC, w_LC, mean_NG, scale_NG)
    g = g_NSC.to(sum_dtype(x_NSC))
    scale = scale_NG[:, None, :, None]
    normal = (_grouped(x_NSC, groups) - mean_NG[:, None, :, None]) * scale
    weighted = _grouped(g if w_LC is None else g * _per_image(w_LC, len(g)), groups)
    along = (weighted * normal).mean((1, 3), keepdim=True)
    back = (weighted - weighted.mean((1, 3), keepdim=True) - normal * along) * scale
    return back.flatten(2).to(x_NSC.dtype), (g * normal.flatten(2)).sum(1), g.sum(1)


@lane_norm_gradients.register_fake
def _(g_NSC: Tensor, x_NSC: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    part = x_NSC.new_empty(len(x_NSC), x_NSC.shape[2], dtype=sum_dtype(x_NSC))
    return torch.empty_like(x_NSC), part, torch.empty_like(part)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, *_ = inputs
    ctx.save_for_backward(x, w, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, g_NSC: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, w, mean, scale = ctx.saved_tensors
    back, weights_NC, biases_NC = lane_norm_gradients(g_NSC.contiguous(), x, w, mean, scale)
    if w is None:
        return back, None, None, None, None
    weights, biases = (part.unflatten(0, (len(w), -1)).sum(1).to(w.dtype) for part in (weights_NC, biases_NC))
    return back, weights, biases, None, None


lane_norm.register_autograd(_backward, setup_context=_save)
add_lanes(lane_norm)


def _by_kernel(x_NSC: Tensor, groups: int) -> bool:
    return x_NSC.is_cuda and x_NSC.dtype != torch.float64 and x_NSC.shape[1] * x_NSC.shape[2] // groups <= LARGEST


def _grouped(x_NSC: Tensor, groups: int) -> Tensor:
    return x_NSC.to(sum_dtype(x_NSC)).view(*x_NSC.shape[:2], groups, -1)


def _per_image(value_LC: Tensor, images: int) -> Tensor:
    """A lane's values for each of its images."""
    return value_LC.repeat_interleave(images // len(value_LC), 0)[:, None]
