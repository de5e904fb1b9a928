"""Triton kernels for what cuDNN does lane by lane: convolutions with weights of their own in every lane, and pooling.

Channels lie last. A convolution is a matrix product for each lane, M × K by K × O, with M = batch · height · width and
K = taps · channels; the M × K matrix is never stored, its elements are read where the image has them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Sizes of the tiles, found by trying on an H200.
FEW_ROWS = 2048
POOL = 1024  # elements of one program


@triton.jit
def _offsets(m, k, HO: tl.constexpr, WO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where row m and column k of the unfolded input begin: their sum is where element (m, k) lies."""
    W: tl.constexpr = WO + KW - 1
    H: tl.constexpr = HO + KH - 1
    rows = ((m // (HO * WO) * H + m % (HO * WO) // WO) * W + m % WO) * C
    columns = (k // C // KW * W + k // C % KW) * C + k % C
    return rows, columns


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, w, bias, out, B,
    HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BIASED: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    K: tl.constexpr = KH * KW * C
    M = B * HO * WO
    x += lane * B * (HO + KH - 1) * (WO + KW - 1) * C
    w += lane * K * OUT
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        rows, columns = _offsets(m, k, HO, WO, KH, KW, C)
        a = tl.load(x + rows[:, None] + columns[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0)
        b = tl.load(w + k[:, None] * OUT + n[None, :], mask=(k < K)[:, None] & (n < OUT)[None, :], other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + lane * OUT + n, mask=n < OUT, other=0).to(tl.float32)[None, :]
    out += lane * M * OUT
    here = (m < M)[:, None] & (n < OUT)[None, :]
    tl.store(out + m[:, None] * OUT + n[None, :], total.to(out.dtype.element_ty), mask=here)


@triton.jit
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, g, out, B, SPLITS,
    HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.program_id(2) // SPLITS * BN + tl.arange(0, BN)
    K: tl.constexpr = KH * KW * C
    M = B * HO * WO
    x += lane * B * (HO + KH - 1) * (WO + KW - 1) * C
    g += lane * M * OUT
    total = tl.zeros((BK, BN), tl.float32)
    for start in range(split * ROWS, tl.minimum((split + 1) * ROWS, M), BM):
        m = start + tl.arange(0, BM)
        rows, columns = _offsets(m, k, HO, WO, KH, KW, C)
        a = tl.load(x + rows[None, :] + columns[:, None], mask=(m < M)[None, :] & (k < K)[:, None], other=0)
        b = tl.load(g + m[:, None] * OUT + n[None, :], mask=(m < M)[:, None] & (n < OUT)[None, :], other=0)
        if PRECISION == "tf32" and a.dtype == tl.float32:  # tensor cores turn bf16 over by themselves, but not TF32
            a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
            a_low, b_low = (a - a_high.to(tl.float32)).to(tl.bfloat16), (b - b_high.to(tl.float32)).to(tl.bfloat16)
            total = tl.dot(a_low, b_high, total)
            total = tl.dot(a_high, b_low, total)
            total = tl.dot(a_high, b_high, total)
        else:
            total = tl.dot(a, b, total, input_precision=PRECISION)
    out += (lane * SPLITS + split) * K * OUT
    tl.store(out + k[:, None] * OUT + n[None, :], total, mask=(k < K)[:, None] & (n < OUT)[None, :])


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


def convolve(x_LBHWC: Tensor, w_LKKCO: Tensor, bias_LO: Tensor | None) -> Tensor:
    """A convolution of stride 1 in every lane, without padding."""
    lanes, batch, height, width, channels = x_LBHWC.shape
    kh, kw, _, outputs = w_LKKCO.shape[1:]
    ho, wo = height - kh + 1, width - kw + 1
    out = x_LBHWC.new_empty(lanes, batch, ho, wo, outputs)
    bm = 128 if batch * ho * wo > FEW_ROWS else 64
    bn, bk = _block(outputs), _block(channels, 32) if channels >= 16 else 128
    grid = (triton.cdiv(batch * ho * wo, bm), lanes, triton.cdiv(outputs, bn))
    _forward[grid](
        x_LBHWC, w_LKKCO, bias_LO, out, batch, HO=ho, WO=wo, C=channels, OUT=outputs, KH=kh, KW=kw,
        BIASED=bias_LO is not None, PRECISION=_precision(), BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def weight_gradient(x_LBHWC: Tensor, g_LBHWO: Tensor) -> Tensor:
    """The gradient of a convolution's weights in every lane, (L, KH, KW, C, O), added up in a fixed order."""
    lanes, batch, height, width, channels = x_LBHWC.shape
    ho, wo, outputs = g_LBHWO.shape[2:]
    kh, kw = height - ho + 1, width - wo + 1
    rows = 2048 if batch * ho * wo > FEW_ROWS else 512
    splits = triton.cdiv(batch * ho * wo, rows)
    bn = _block(outputs)
    bk = 128 if bn <= 32 else 64
    parts = torch.empty(lanes, splits, kh, kw, channels, outputs, dtype=torch.float32, device=x_LBHWC.device)
    grid = (triton.cdiv(kh * kw * channels, bk), lanes, splits * triton.cdiv(outputs, bn))
    _weight_gradient[grid](
        x_LBHWC, g_LBHWO, parts, batch, splits, HO=ho, WO=wo, C=channels, OUT=outputs, KH=kh, KW=kw,
        PRECISION=_precision(), ROWS=rows, BM=32, BN=bn, BK=bk, num_warps=4, num_stages=3,
    )  # fmt: skip
    return parts.sum(1)


def pool(
    x_NHWC: Tensor, window: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Maxima of windows and which element of its window each one is."""
    images, height, width, channels = x_NHWC.shape
    ho = (height + 2 * padding[0] - window[0]) // stride[0] + 1
    wo = (width + 2 * padding[1] - window[1]) // stride[1] + 1
    out = x_NHWC.new_empty(images, ho, wo, channels)
    winner = torch.empty(out.shape, dtype=torch.uint8, device=out.device)
    _pool_forward[(triton.cdiv(out.numel(), POOL),)](
        x_NHWC, out, winner, out.numel(), H=height, W=width, HO=ho, WO=wo, C=channels, KH=window[0], KW=window[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], LONG=_long(out) or _long(x_NHWC), BLOCK=POOL,
    )  # fmt: skip
    return out, winner


def pool_gradient(
    g_NHWC: Tensor,
    winner: Tensor,
    size: tuple[int, int],
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """What the pooled image's gradient is for the image."""
    images, ho, wo, channels = g_NHWC.shape
    out = g_NHWC.new_empty(images, *size, channels)
    _pool_backward[(triton.cdiv(out.numel(), POOL),)](
        g_NHWC, winner, out, out.numel(), H=size[0], W=size[1], HO=ho, WO=wo, C=channels, KH=window[0], KW=window[1],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], LONG=_long(out), BLOCK=POOL,
    )  # fmt: skip
    return out


def _block(size: int, most: int = 64) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _long(x: Tensor) -> bool:
    return x.numel() >= 2**31 - POOL


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
