"""Convolutions of many models at once: one kernel on a GPU, plain torch elsewhere.

What a model calls is the layer of one lane; under vmap it becomes the layer of all lanes. Axes: L lanes, B batch,
N images of all lanes, C channels, H height, W width, O outputs, K taps of a side.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from cpfl.kernels.axes import lanes_first, sum_dtype

VECTOR = 4  # channels that are read at once: three are padded to four


@torch.library.custom_op("cpfl::conv", mutates_args=())
def conv(x_BCHW: Tensor, w_OCKK: Tensor, bias_O: Tensor | None, padding: list[int]) -> Tensor:
    """One lane's convolution."""
    return nn.functional.conv2d(x_BCHW, w_OCKK, bias_O, padding=padding)


conv.register_fake(lambda x, w, bias, padding: nn.functional.conv2d(x, w, bias, padding=padding))


@conv.register_vmap
def _(info: Any, dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, padding: list[int]) -> tuple[Tensor, int]:
    x, w = (lanes_first(value, dim, info.batch_size) for value, dim in ((x, dims[0]), (w, dims[1])))
    bias = None if bias is None else lanes_first(bias, dims[2], info.batch_size)
    return conv_all(x, w, bias, padding), 0


def conv_all(x_LBCHW: Tensor, w_LOCKK: Tensor, bias_LO: Tensor | None, padding: list[int]) -> Tensor:
    """The convolutions of all lanes."""
    unused = -x_LBCHW.shape[2] % VECTOR
    border = (0, unused, padding[1], padding[1], padding[0], padding[0])
    x_LBHWC = nn.functional.pad(x_LBCHW.permute(0, 1, 3, 4, 2), border).contiguous()
    w_LKKCO = nn.functional.pad(w_LOCKK.permute(0, 3, 4, 2, 1), (0, 0, 0, unused)).contiguous()
    bias = None if bias_LO is None else bias_LO.contiguous()
    out_LBHWO: Tensor = lane_conv(x_LBHWC, w_LKKCO, bias)
    return out_LBHWO.permute(0, 1, 4, 2, 3)


@torch.library.custom_op("cpfl::lane_conv", mutates_args=())
def lane_conv(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    """A convolution in every lane, channels last, without padding."""
    if x_LBHWC.is_cuda:
        from cpfl.kernels.triton import conv as kernels

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


@torch.library.custom_op("cpfl::lane_conv_gradients", mutates_args=())
def lane_conv_gradients(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    """The gradient of the weights in every lane, (L, K, K, C, O)."""
    if x_LBHWC.is_cuda:
        from cpfl.kernels.triton import conv as kernels

        return kernels.weight_gradient(x_LBHWC, g_LBHWO)
    lanes = []
    for x, g in zip(x_LBHWC, g_LBHWO, strict=True):
        shape = (g.shape[-1], x.shape[-1], *_taps(x_LBHWC, g_LBHWO))
        gradients = conv2d_weight(x.movedim(-1, 1), shape, g.movedim(-1, 1))  # type: ignore[no-untyped-call]
        lanes.append(gradients.permute(2, 3, 1, 0))
    return torch.stack(lanes).to(sum_dtype(x_LBHWC)).contiguous()


@lane_conv_gradients.register_fake
def _(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    sizes = (x_LBHWC.shape[0], *_taps(x_LBHWC, g_LBHWO), x_LBHWC.shape[-1], g_LBHWO.shape[-1])
    return x_LBHWC.new_empty(sizes, dtype=sum_dtype(x_LBHWC))


def _taps(x_LBHWC: Tensor, g_LBHWO: Tensor) -> list[int]:
    return [size - out + 1 for size, out in zip(x_LBHWC.shape[2:4], g_LBHWO.shape[2:4], strict=True)]


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
