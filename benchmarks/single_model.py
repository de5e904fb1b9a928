"""Which layers are fastest for a single model, as teachers and students are?

The lanes' kernels, cuDNN's convolutions with the lanes' other kernels, or torch's own layers, channels last. The
model predicts many images, as teachers do, and trains on a batch, as the student does. On a GPU eagerly and as a graph.

    python benchmarks/single_model.py --out results/lanes/single-model.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.lanes.graphs import captured
from cpfl.kernels import layers

Make = Callable[[nn.Module, Tensor, str], Callable[[], None]]


def ways(dtype: torch.dtype) -> dict[str, nn.Module]:
    """The same model in three ways."""
    plain = models.gn_lenet((3, 32, 32), 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    own = layers.fit(plain, dtype)
    mixed = layers.fit(plain, dtype)
    for name, part in plain.named_modules():
        if isinstance(part, nn.Conv2d):
            parent, _, last = name.rpartition(".")
            setattr(mixed.get_submodule(parent), last, part)
    return {"own kernels": own, "cuDNN's convolutions, own norm and pool": mixed, "torch's own": plain}


def predicts(module: nn.Module, x: Tensor, precision: str) -> Callable[[], None]:
    """A forward pass."""

    def work() -> None:
        with torch.no_grad(), models.arithmetic(x.device, precision):
            module(x)

    return work


def trains(module: nn.Module, x: Tensor, precision: str) -> Callable[[], None]:
    """A step of training."""
    optimizer = torch.optim.Adam(module.parameters(), capturable=x.device.type == "cuda")
    y = torch.arange(len(x), device=x.device) % 10

    def work() -> None:
        with models.arithmetic(x.device, precision):
            out = module(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(out.float(), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return work


CASES: tuple[tuple[str, int, Make], ...] = (
    ("predicts", 4096, predicts),
    ("predicts", 16_384, predicts),
    ("trains", 512, trains),
    ("trains", 256, trains),
)


def seconds(work: Callable[[], None], device: torch.device, repeat: int) -> float:
    """Of one call, the best of three series."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / repeat)
    return best


def longest(work: Callable[[], None], most: int = 12) -> dict[str, float]:
    """The kernels that take longest, microseconds of one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return {event.key[:100]: round(event.self_device_time_total, 1) for event in events[:most]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeat", type=int, default=50)
    words = parser.parse_args()
    device = torch.device(words.device)
    rows: list[dict[str, Any]] = []
    kernels: dict[str, dict[str, float]] = {}
    for precision in ("bf16", "tf32"):
        models.choose_arithmetic(precision)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for kind, batch, make in CASES:
            x = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
            for name, module in ways(dtype).items():
                work = make(module.to(device), x, precision)
                for _ in range(3):
                    work()
                row = {"way": name, "precision": precision, "task": kind, "batch": batch}
                row["samples/s, eagerly"] = round(batch / seconds(work, device, words.repeat))
                if device.type == "cuda":
                    row["samples/s, as a graph"] = round(batch / seconds(captured(work, device), device, words.repeat))
                    if kind == "predicts":
                        kernels[f"{precision}, {name}, {batch}"] = longest(work)
                rows.append(row)
                print(json.dumps(row), flush=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    results = {"machine": name, "torch": torch.__version__, "rows": rows, "microseconds of a forward pass": kernels}
    words.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
