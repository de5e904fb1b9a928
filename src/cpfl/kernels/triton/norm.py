"""Triton kernels for group normalisation, channels last: a program holds one group of one image."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _total(values):  # type: ignore[no-untyped-def]
    return tl.sum(tl.sum(values, axis=1), axis=0)


@triton.jit
def _offsets(S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where this program's numbers lie, which of the tile exist, and its channels."""
    s, c = tl.arange(0, BS), tl.arange(0, BC)
    channels = tl.program_id(1) * (C // G) + c
    at = tl.program_id(0).to(tl.int64) * S * C + s[:, None] * C + channels[None, :]
    return at, (s < S)[:, None] & (c < C // G)[None, :], channels, c < C // G


@triton.jit(do_not_specialize=["B"])
def _forward(  # type: ignore[no-untyped-def]
    x, w, bias, out, mean, scale, B, eps,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, AFFINE: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    at, here, channels, held = _offsets(S, C, G, BS, BC)
    values = tl.load(x + at, mask=here, other=0).to(tl.float32)
    middle = _total(values) / (S * (C // G))
    values = tl.where(here, values - middle, 0)
    factor = 1 / tl.sqrt(_total(values * values) / (S * (C // G)) + eps)
    values *= factor
    if AFFINE:
        lane = tl.program_id(0) // B * C
        values *= tl.load(w + lane + channels, mask=held, other=0).to(tl.float32)[None, :]
        values += tl.load(bias + lane + channels, mask=held, other=0).to(tl.float32)[None, :]
    tl.store(out + at, values.to(out.dtype.element_ty), mask=here)
    tl.store(mean + tl.program_id(0) * G + tl.program_id(1), middle)
    tl.store(scale + tl.program_id(0) * G + tl.program_id(1), factor)


@triton.jit(do_not_specialize=["B"])
def _backward(  # type: ignore[no-untyped-def]
    g, x, w, mean, scale, out, gradients, offsets, B,
    S: tl.constexpr, C: tl.constexpr, G: tl.constexpr, AFFINE: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    at, here, channels, held = _offsets(S, C, G, BS, BC)
    middle = tl.load(mean + tl.program_id(0) * G + tl.program_id(1))
    factor = tl.load(scale + tl.program_id(0) * G + tl.program_id(1))
    normal = tl.where(here, (tl.load(x + at, mask=here, other=0).to(tl.float32) - middle) * factor, 0)
    gradient = tl.load(g + at, mask=here, other=0).to(tl.float32)
    part = tl.program_id(0) * C + channels
    tl.store(gradients + part, tl.sum(gradient * normal, axis=0), mask=held)
    tl.store(offsets + part, tl.sum(gradient, axis=0), mask=held)
    if AFFINE:
        gradient *= tl.load(w + tl.program_id(0) // B * C + channels, mask=held, other=0).to(tl.float32)[None, :]
    count: tl.constexpr = S * (C // G)
    back = (gradient - _total(gradient) / count - normal * (_total(gradient * normal) / count)) * factor
    tl.store(out + at, back.to(out.dtype.element_ty), mask=here)


def normalise(
    x_NSC: Tensor, w_LC: Tensor | None, bias_LC: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised images, and of every image and group the mean and the inverse of the deviation."""
    out = torch.empty_like(x_NSC)
    mean = torch.empty(len(x_NSC), groups, dtype=torch.float32, device=x_NSC.device)
    scale = torch.empty_like(mean)
    batch = len(x_NSC) if w_LC is None else len(x_NSC) // len(w_LC)
    _forward[len(x_NSC), groups](x_NSC, w_LC, bias_LC, out, mean, scale, batch, eps, **_sizes(x_NSC, w_LC, groups))
    return out, mean, scale


def gradients(
    g_NSC: Tensor, x_NSC: Tensor, w_LC: Tensor | None, mean_NG: Tensor, scale_NG: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the input, and each image's share of those of the weights and the bias."""
    out, groups = torch.empty_like(x_NSC), mean_NG.shape[1]
    parts = [torch.empty(len(x_NSC), x_NSC.shape[2], dtype=torch.float32, device=x_NSC.device) for _ in range(2)]
    batch = len(x_NSC) if w_LC is None else len(x_NSC) // len(w_LC)
    _backward[len(x_NSC), groups](
        g_NSC, x_NSC, w_LC, mean_NG, scale_NG, out, *parts, batch, **_sizes(x_NSC, w_LC, groups)
    )
    return out, parts[0], parts[1]


def _sizes(x_NSC: Tensor, w_LC: Tensor | None, groups: int) -> dict[str, int]:
    _, pixels, channels = x_NSC.shape
    bs, bc = triton.next_power_of_2(pixels), triton.next_power_of_2(channels // groups)
    warps = 8 if bs * bc > 8192 else 4
    return {"S": pixels, "C": channels, "G": groups, "AFFINE": w_LC is not None, "BS": bs, "BC": bc, "num_warps": warps}
