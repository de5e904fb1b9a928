"""What does a training step spend its time on, on one core? How near is that core to its peak, and what does it gain
where workers do without autograd?

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

from cpfl.engines.workers.chain import chain
from cpfl.engines.workers.crew import keep_memory
from cpfl.engines.workers.form import Form

SHAPE = (3, 32, 32)
CONVOLUTIONS = ("aten::convolution_backward", "aten::mkldnn_convolution")
POOLING = ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward")
MFLOP = {"gn-lenet": 59.4, "lenet5": 2.85}  # of a sample, forward and backward, convolutions alone
TURNS = 60


def seconds(*works: Callable[[], object], times: int = 5) -> list[float]:
    """CPU seconds of each, after a few to warm up; they take turns, and the medians count."""
    spent: list[list[float]] = [[] for _ in works]
    for turn in range(TURNS + 3):
        for work, own in zip(works, spent, strict=True):
            began = time.process_time()
            for _ in range(times):
                work()
            if turn >= 3:
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
    form = Form.of(model.state_dict(), torch.float32)
    row, slopes = form.rows(1), form.rows(1)
    row.put(0, model.state_dict())
    named = dict(model.named_parameters())
    for name, view in row.views(0).items():
        named[name].data = view
    parameters = [named[name] for name in form.floats]
    x = torch.randn(BATCH, *SHAPE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, CLASSES, (BATCH,))

    def by_autograd() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=low, cache_enabled=False):
            logits = model(x)
        found = torch.autograd.grad(nn.functional.cross_entropy(logits.float(), y), parameters)
        torch.cat([form.flat(slope) for slope in found])

    own = chain(model, x.dim(), row.floats_KP[0], form.views, slopes.floats_KP[0], low)
    assert own is not None
    before, after = seconds(by_autograd, lambda: own.step(x, y))
    with profile(activities=[ProfilerActivity.CPU]) as told:
        for _ in range(50):
            own.step(x, y)
    found = {event.key: event.self_cpu_time_total for event in told.key_averages()}
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
