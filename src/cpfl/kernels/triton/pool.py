"""Triton kernels for pooling, channels last."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

POOL = 1024  # elements of one program


@triton.jit
def _pool_forward(  # type: ignore[no-untyped-def]
    x, out, winner, COUNT,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    here = i < COUNT
    c, xo, yo, image = i % C, i // C % WO, i // (C * WO) % HO, i // (C * WO * HO)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    which = tl.zeros((BLOCK,), tl.int32)
    for ky in tl.static_range(KH):
        for kx in tl.static_range(KW):
            y, xx = yo * SH + ky - PH, xo * SW + kx - PW
            inside = here & (y >= 0) & (y < H) & (xx >= 0) & (xx < W)
            value = tl.load(x + ((image * H + y) * W + xx) * C + c, mask=inside, other=float("-inf")).to(tl.float32)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            which = tl.where(better, ky * KW + kx, which)
    tl.store(out + i, best.to(out.dtype.element_ty), mask=here)
    tl.store(winner + i, which.to(tl.uint8), mask=here)


@triton.jit
def _pool_backward(  # type: ignore[no-untyped-def]
    g, winner, out, COUNT,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0).to(tl.int64) if LONG else tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
    here = i < COUNT
    c, x, y, image = i % C, i // C % W, i // (C * W) % H, i // (C * W * H)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range((KH + SH - 1) // SH):
        for k in tl.static_range((KW + SW - 1) // SW):
            yo, xo = (y + PH) // SH - j, (x + PW) // SW - k
            ky, kx = y + PH - yo * SH, x + PW - xo * SW
            inside = here & (yo >= 0) & (yo < HO) & (xo >= 0) & (xo < WO) & (ky < KH) & (kx < KW)
            at = ((image * HO + yo) * WO + xo) * C + c
            mine = tl.load(winner + at, mask=inside, other=255) == ky * KW + kx
            total += tl.load(g + at, mask=inside & mine, other=0).to(tl.float32)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=here)


def pool(x_NHWC: Tensor, window: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of windows and which element of its window each one is."""
    images, height, width, channels = x_NHWC.shape
    ho = (height + 2 * padding[0] - window[0]) // stride[0] + 1
    wo = (width + 2 * padding[1] - window[1]) // stride[1] + 1
    out = x_NHWC.new_empty(images, ho, wo, channels)
    winner = torch.empty(out.shape, dtype=torch.uint8, device=out.device)
    sizes = _sizes(x_NHWC, out, window, stride, padding)
    _pool_forward[(triton.cdiv(out.numel(), POOL),)](x_NHWC, out, winner, out.numel(), **sizes)
    return out, winner


def pool_gradient(
    g_NHWC: Tensor, winner: Tensor, size: Sequence[int], window: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:  # fmt: skip
    """The gradient of the image, from that of the pooled one."""
    out = g_NHWC.new_empty(len(g_NHWC), *size, g_NHWC.shape[3])
    sizes = _sizes(out, g_NHWC, window, stride, padding)
    _pool_backward[(triton.cdiv(out.numel(), POOL),)](g_NHWC, winner, out, out.numel(), **sizes)
    return out


def _sizes(image: Tensor, pooled: Tensor, *sides: Sequence[int]) -> dict[str, int]:
    """What both kernels are compiled for; `sides` are window, stride and padding."""
    _, height, width, channels = image.shape
    _, ho, wo, _ = pooled.shape
    (kh, kw), (sh, sw), (ph, pw) = sides
    windows = {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "PH": ph, "PW": pw}
    long = max(image.numel(), pooled.numel()) >= 2**31 - POOL
    return {"H": height, "W": width, "HO": ho, "WO": wo, "C": channels, **windows, "LONG": long, "BLOCK": POOL}
