"""Convolutions of many models at once: one kernel on a GPU, plain torch elsewhere.

Axes: L lanes, B batch, C channels, H height, W width, O outputs, K taps of a side.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cpfl.kernels import add_lanes, sum_dtype


@torch.library.custom_op("cpfl::lane_conv", mutates_args=())
def lane_conv(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    """A convolution in every lane, channels last, without padding."""
    if x_LBHWC.is_cuda:
        from cpfl.kernels.triton import conv as kernels

        return kernels.convolve(x_LBHWC, w_LKKCO, bias_LO)
    kh, kw = w_LKKCO.shape[1:3]
    out = torch.einsum("lbhwcij,lijco->lbhwo", x_LBHWC.unfold(2, kh, 1).unfold(3, kw, 1), w_LKKCO).contiguous()
    return out if bias_LO is None else out + bias_LO[:, None, None, None]


@lane_conv.register_fake
def _(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    lanes, batch, height, width, _ = x_LBHWC.shape
    kh, kw, _, outputs = w_LKKCO.shape[1:]
    return x_LBHWC.new_empty(lanes, batch, height - kh + 1, width - kw + 1, outputs)


@torch.library.custom_op("cpfl::lane_conv_gradients", mutates_args=())
def lane_conv_gradients(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    """The gradient of the weights in every lane, (L, K, K, C, O)."""
    if x_LBHWC.is_cuda:
        from cpfl.kernels.triton import conv as kernels

        return kernels.weight_gradient(x_LBHWC, g_LBHWO)
    height, width = g_LBHWO.shape[2:4]
    sums = torch.einsum("lbijchw,lbhwo->lijco", x_LBHWC.unfold(2, height, 1).unfold(3, width, 1), g_LBHWO)
    return sums.to(sum_dtype(x_LBHWC)).contiguous()


@lane_conv_gradients.register_fake
def _(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    lanes, _, height, width, channels = x_LBHWC.shape
    ho, wo, outputs = g_LBHWO.shape[2:]
    taps = (height - ho + 1, width - wo + 1)
    return x_LBHWC.new_empty(lanes, *taps, channels, outputs, dtype=sum_dtype(x_LBHWC))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias = inputs
    ctx.save_for_backward(x, w)
    ctx.biased = bias is not None


def _backward(ctx: Any, g_LBHWO: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    x, w = ctx.saved_tensors
    g = g_LBHWO.contiguous()
    back = None
    if ctx.needs_input_grad[0]:  # the same convolution, of the padded gradient with flipped weights
        kh, kw = w.shape[1:3]
        bordered = nn.functional.pad(g, (0, 0, kw - 1, kw - 1, kh - 1, kh - 1))
        back = lane_conv(bordered, w.flip(1, 2).transpose(3, 4).contiguous(), None)
    gradients = lane_conv_gradients(x, g).to(w.dtype)
    return back, gradients, g.sum((1, 2, 3), dtype=sum_dtype(g)).to(g.dtype) if ctx.biased else None


lane_conv.register_autograd(_backward, setup_context=_save)
add_lanes(lane_conv)
