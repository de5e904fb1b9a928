"""What does a training step spend its time on, on one core? And how near is that core to its peak?

python benchmarks/cpu_step.py --precision float32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from cpfl.models import BUILT_IN

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 20
CONVOLUTIONS = ("aten::convolution_backward", "aten::mkldnn_convolution")
POOLING = ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward")
MFLOP = 59.4  # of a sample of gn-lenet, forward and backward, convolutions alone


def seconds(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one, after a few to warm up."""
    for _ in range(10):
        work()
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    words = parser.parse_args()
    torch.set_num_threads(1)
    model = BUILT_IN["gn-lenet"](SHAPE, CLASSES).to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    x = torch.randn(BATCH, *SHAPE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, CLASSES, (BATCH,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=words.precision == "bf16", cache_enabled=False):
            logits = model(x)
        torch.autograd.grad(nn.functional.cross_entropy(logits.float(), y), parameters)

    whole = seconds(step, 100)
    with profile(activities=[ProfilerActivity.CPU]) as told:
        for _ in range(50):
            step()
    found = {event.key: event.self_cpu_time_total for event in told.key_averages()}
    shares = {name: sum(found[key] for key in keys) / sum(found.values()) for name, keys in
              (("convolutions", CONVOLUTIONS), ("pooling", POOLING))}  # fmt: skip
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    peak = 2 * 1024**3 / seconds(lambda: a @ b, 20) / 1e9
    reached = MFLOP * BATCH / (whole * shares["convolutions"]) / 1e3  # GFLOP/s
    print(f"a step of {BATCH} samples: {1000 * whole:.1f} ms, of which convolutions {shares['convolutions']:.0%} "
          f"at {reached:.0f} GFLOP/s, pooling {shares['pooling']:.0%}; "
          f"a product of two 1024×1024 float32 matrices: {peak:.0f} GFLOP/s")  # fmt: skip


if __name__ == "__main__":
    main()
