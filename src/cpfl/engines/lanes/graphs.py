"""The same work as a graph: compiled, or captured as one launch on a GPU."""

import functools
import gc
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

WARM_UPS = 3
MANY_ENGINES = 10_000  # a sweep has one for every run

Params = ParamSpec("Params")
Result = TypeVar("Result")


def faster(work: Callable[Params, Result]) -> Callable[Params, Result]:
    """The work, compiled; anew for every engine of a process, where torch would leave the ninth uncompiled."""
    import torch._dynamo  # takes seconds, and only who compiles needs it

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MANY_ENGINES
    # Sums are split by rule, not by timing, which differs between processes: a run repeats bit by bit.
    return torch.compile(work, dynamic=False, options={"deterministic": True})


@functools.cache
def _warm_up_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same one: cuBLAS keeps 32 MiB for good for every stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as a CUDA graph: one launch instead of hundreds. Elsewhere the work itself."""
    if device.type != "cuda":
        return work
    side = _warm_up_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's remarks on itself
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # graphs of an engine that is gone, freed during a capture, would break it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a capture which fails is empty
            with torch.cuda.graph(graph):
                work()
    finally:
        if collects:
            gc.enable()
    return graph.replay
