"""A process that has a share of a GPU keeps to its part of the card's memory, and of its node's cores."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray
import torch

from cpfl.engines.ray.cluster import slots
from cpfl.engines.workers.crew import cores

COMPILING = "TORCHINDUCTOR_COMPILE_THREADS"


def settle_in(gpu_share: float) -> None:
    """Before anything is put on the card or compiled."""
    if gpu_share < 1:
        torch.cuda.set_per_process_memory_fraction(gpu_share)
    if COMPILING not in os.environ:  # the compiler reads it as it is imported, in whichever thread
        here = ray.get_runtime_context().get_node_id()
        node = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
        os.environ[COMPILING] = str(compile_threads(node, gpu_share))


def compile_threads(node: Mapping[str, float], gpu_share: float) -> int:
    """A process's part of its node's cores, while all of them compile at once."""
    return max(1, cores() // max(1, slots([node], gpu_share)))
