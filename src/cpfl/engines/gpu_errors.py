"""Errors of a GPU: out of memory, which may pass, and failures after which the process cannot use it any more."""

import torch

from cpfl.errors import first_line

MESSAGES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")  # of CUDA's libraries


def out_of_memory(error: BaseException | None) -> bool:
    """Whether the device ran out of memory, directly or inside the compiler, which wraps the error in its own."""
    if error is None:
        return False
    from_cuda = isinstance(error, torch.AcceleratorError) or type(error) is RuntimeError
    if isinstance(error, torch.OutOfMemoryError) or (from_cuda and any(text in str(error) for text in MESSAGES)):
        return True
    return out_of_memory(getattr(error, "inner_exception", None))


def device_failed(error: BaseException | None) -> str:
    """The error's first line if the device is to blame, so that another process may succeed; else empty."""
    if isinstance(error, torch.AcceleratorError) or out_of_memory(error):
        assert isinstance(error, Exception)
        return first_line(error)
    return ""
