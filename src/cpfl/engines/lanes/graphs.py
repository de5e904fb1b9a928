"""The same work as a graph: compiled, or captured as one launch on a GPU; recorded on a CPU."""

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


def recorded(work: Callable[..., Result]) -> Callable[..., Result]:
    """The same operations in the same order, found in the first call and repeated in all others.

    For a small model, what vmap and autograd do between operations takes longer than these. Inputs are tensors of the
    same shapes in every call; `work` may differentiate, the results need no gradient.
    """
    found: list[Callable[..., Result]] = []

    def repeat(*inputs: object) -> Result:
        if not found:
            found.append(_recording(work, inputs))
        return found[0](*inputs)

    return repeat


def _recording(work: Callable[..., Result], inputs: tuple[object, ...]) -> Callable[..., Result]:
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a moment, and only lanes on a CPU need it

    try:
        # A function of no class: of a method, the number of arguments is miscounted.
        graph: Callable[..., Result] = make_fx(lambda *values: work(*values))(*inputs)
    except Exception:  # what cannot be recorded, vmap may still do; what fails, fails again and says why
        return work
    return torch.no_grad()(graph)
