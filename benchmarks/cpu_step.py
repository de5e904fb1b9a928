"""What does a training step cost on one core with autograd and without, and how near is the core to its peak?

The rule: hand-written steps stay while they gain 10 % or more on a preset's model. `sequential.py` measures that gain
in whole rounds; this script shows where the time of one step goes.

python benchmarks/cpu_step.py --model gn-lenet --precision float32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from peers.works import BATCH, CLASSES, MODELS, build
from torch import nn
from torch.profiler import ProfilerActivity, profile

from cpfl.engines.workers.pool import keep_memory
from cpfl.engines.workers.sequential import sequential_step
from cpfl.models.layout import Layout

SHAPE = (3, 32, 32)
CONVOLUTIONS = ("aten::convolution_backward", "aten::mkldnn_convolution")
POOLING = ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward")
MFLOP = {"gn-lenet": 59.4, "lenet5": 2.85}  # of a sample, forward and backward, convolutions alone
REPEATS = 60


def seconds(*works: Callable[[], object], times: int = 5) -> list[float]:
    """Median CPU seconds of each after a few calls to warm up; they alternate."""
    spent: list[list[float]] = [[] for _ in works]
    for repeat in range(REPEATS + 3):
        for work, own in zip(works, spent, strict=True):
            began = time.process_time()
            for _ in range(times):
                work()
            if repeat >= 3:
                own.append((time.process_time() - began) / times)
    return [median(own) for own in spent]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="gn-lenet")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    words = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as workers do
    model, low = build(words.model), words.precision == "bf16"
    layout = Layout.from_module(model, by_name=True, channels_last=True)
    row = layout.row(model.state_dict(), torch.device("cpu"))
    gradients = torch.zeros_like(row)
    named = dict(model.named_parameters())
    for name, view in layout.views(row).items():
        named[name].data = view
    parameters = [named[name] for name in layout.shapes]
    x = torch.randn(BATCH, *SHAPE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, CLASSES, (BATCH,))

    def by_autograd() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low, cache_enabled=False):
            logits = model(x)
        found = torch.autograd.grad(nn.functional.cross_entropy(logits.float(), y), parameters)
        torch.cat([layout.flat(gradient) for gradient in found])

    own = sequential_step(model, x.dim(), row, gradients, layout.views, low)
    assert own is not None
    before, after = seconds(by_autograd, lambda: own(x, y))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(50):
            own(x, y)
    found = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    shares = {name: sum(found[key] for key in keys) / sum(found.values()) for name, keys in
              (("convolutions", CONVOLUTIONS), ("pooling", POOLING))}  # fmt: skip
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    peak = 2 * 1024**3 / seconds(lambda: a @ b, times=1)[0] / 1e9
    reached = MFLOP[words.model] * BATCH / (after * shares["convolutions"]) / 1e3  # GFLOP/s
    print(f"a step of {BATCH} samples: {1000 * before:.2f} ms with autograd, {1000 * after:.2f} ms without "
          f"({after / before:.3f}), of which convolutions {shares['convolutions']:.0%} at {reached:.0f} GFLOP/s, "
          f"pooling {shares['pooling']:.0%}; "
          f"a product of two 1024×1024 float32 matrices: {peak:.0f} GFLOP/s")  # fmt: skip


if __name__ == "__main__":
    main()
