"""What a GPU can do to a process: run out of memory, which may pass, or fail, after which it computes no more there."""

from __future__ import annotations

import torch

from cpfl.models import first_line

SHORT = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")  # as CUDA's libraries say it


def short_of_memory(error: BaseException | None) -> bool:
    """Whether that is what happened, maybe to the compiler, which says it in words of its own."""
    if error is None:
        return False
    told = isinstance(error, torch.AcceleratorError) or type(error) is RuntimeError
    if isinstance(error, torch.OutOfMemoryError) or (told and any(words in str(error) for words in SHORT)):
        return True
    return short_of_memory(getattr(error, "inner_exception", None))


def device_failed(error: BaseException | None) -> str:
    """What it says of itself if the device, not the work, is to blame: another process may do better. Else empty."""
    if isinstance(error, torch.AcceleratorError) or short_of_memory(error):
        assert isinstance(error, Exception)
        return first_line(error)
    return ""
