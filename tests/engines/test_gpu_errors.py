"""Errors of the GPU itself, distinguished from errors of the work."""

from __future__ import annotations

import pytest
import torch

from cpfl.engines.gpu_errors import device_failed, out_of_memory
from cpfl.errors import DivergedError

OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")
LAUNCH = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors …")


def compiling(within: Exception) -> Exception:
    error = RuntimeError("backend='inductor' raised")
    error.inner_exception = within  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "short", "why"),
    [
        (OUT, True, "CUDA out of memory. Tried to allocate 2.00 GiB."),
        (torch.AcceleratorError("CUDA error: out of memory\nmore"), True, "CUDA error: out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling …"), True, "CUDA error: CUBLAS_STATUS"),
        (compiling(OUT), True, "backend='inductor' raised"),
        (LAUNCH, False, "CUDA error: an illegal memory access was encountered"),
        (compiling(ValueError("what is this?")), False, ""),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, ""),
        (DivergedError(0, 1, 2, float("nan")), False, ""),
        (None, False, ""),
    ],
)
def test_who_is_to_blame(error: Exception | None, short: bool, why: str) -> None:
    assert out_of_memory(error) is short
    assert bool(device_failed(error)) is bool(why)
    assert device_failed(error).startswith(why)
