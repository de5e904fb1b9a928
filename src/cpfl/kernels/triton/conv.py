"""Triton kernels for what cuDNN does lane by lane: convolutions with weights of their own in every lane.

Channels lie last. A convolution is a matrix product for each lane, M × K by K × O, with M = batch · height · width and
K = taps · channels; the M × K matrix is never stored, its elements are read where the image has them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Sizes of the tiles, found by trying on an H200.
FEW_ROWS = 2048


@triton.jit
def _offsets(m, k, HO: tl.constexpr, WO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where row m and column k of the unfolded input begin: their sum is where element (m, k) lies."""
    W: tl.constexpr = WO + KW - 1
    H: tl.constexpr = HO + KH - 1
    rows = ((m // (HO * WO) * H + m % (HO * WO) // WO) * W + m % WO) * C
    columns = (k // C // KW * W + k // C % KW) * C + k % C
    return rows, columns


@triton.jit(do_not_specialize=["B"])
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


@triton.jit(do_not_specialize=["B", "SPLITS"])
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


def _block(size: int, most: int = 64) -> int:
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
