"""How near is each operation of a step in lanes to what the device can do?

Every operation of one step is repeated by itself: its bytes (all that it reads and writes, once), its FLOPs (of
products and convolutions), and what of both it does a second. The roof is the larger of the two times that the device
needs for them, by its own copies and products of matrices, measured in the same call. A compiled step fuses operations
on single numbers; the kernels for convolutions, pooling and normalisation are the same there.

python benchmarks/roofline.py --set cohorts=16 --set precision=bf16 --lanes 64 --out roofline.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from cpfl import models
from cpfl.data.given import Given
from cpfl.diagnostics import drawn
from cpfl.engines.create import torch_device
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.lanes.step import Lanes
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

ROWS = 40  # of the table
SERIES = 3  # of repetitions; the fastest counts


@dataclass
class Operation:
    """One operation on tensors of some shapes, and how often a step does it."""

    again: Callable[[], Any]
    bytes: int
    flops: int
    calls: int = 0


class Recorder(TorchDispatchMode):
    """Every operation that reaches the device, by its name and shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, Operation] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and note what it reads and writes."""
        words = kwargs or {}
        out = func(*args, **words)
        if any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns):
            return out  # another view of the same memory
        read, made = ([t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in ((args, words), out))
        shapes = " ".join(f"{str(t.dtype).removeprefix('torch.')}{[*t.shape]}" for t in read)
        key = f"{func._overloadpacket} {shapes}"
        if key not in self.found:
            count = sum(t.nbytes for t in {id(t): t for t in [*read, *made]}.values())
            self.found[key] = Operation(lambda: func(*args, **words), count, flops(func, args, words, out))
        self.found[key].calls += 1
        return out


def flops(func: Any, args: Any, words: Any, out: Any) -> int:
    """Multiplications and additions; those of the lanes' convolutions are counted here, others by torch."""
    name = str(func._overloadpacket)
    if name == "cpfl.lane_conv":
        return int(2 * out.numel() * args[1][0, ..., 0].numel())
    if name == "cpfl.lane_conv_gradients":
        return int(2 * args[1].numel() * out[0, ..., 0].numel())
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **words, out_val=out)) if count else 0


def seconds(work: Callable[[], Any], device: torch.device, repeat: int) -> float:
    """Of one call."""
    best = float("inf")
    for _ in range(SERIES):
        for _ in range(2):
            work()
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record()
            for _ in range(repeat):
                work()
            last.record()
            torch.cuda.synchronize()
            best = min(best, first.elapsed_time(last) / 1000 / repeat)
        else:
            began = time.perf_counter()
            for _ in range(repeat):
                work()
            best = min(best, (time.perf_counter() - began) / repeat)
    return best


def roofs(device: torch.device, size: int, repeat: int) -> dict[str, float]:
    """Bytes a second of a copy, and FLOPs a second of a product of matrices, by type of number."""
    source = torch.zeros(size * size * 16, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"bytes": 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeat)}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):  # float32: in the arithmetic that was chosen
        a = torch.ones(size, size, dtype=dtype, device=device)
        found[str(dtype).removeprefix("torch.")] = 2 * size**3 / seconds(lambda a=a: a @ a, device, repeat)  # type: ignore[misc]
    return found


def operations(lanes: Lanes) -> dict[str, Operation]:
    """What one step does, not compiled."""
    lanes._forward, lanes._gradients, lanes._compiled_step = lanes._losses_of_rows, lanes._from_rows, None
    lanes._step()
    recorder = Recorder()
    with recorder:
        lanes._step()
    return recorder.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="without it, images are drawn")
    parser.add_argument("--samples", type=int, default=50_000, help="images to draw")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--size", type=int, default=8192, help="of the matrices whose product is a roof")
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    device = torch_device(words.device)
    own = [] if words.data else ["devices.trace=synthetic", "data.public_fit=exact"]
    experiment = experiment_file.load("cifar10", [*own, *words.set]).resolved(device.type)
    given = Given() if words.data else drawn(experiment, words.samples)
    task = build_task(experiment, [words.data] if words.data else [], given)
    lanes = LaneEngine(task, device, words.lanes, 0).large
    lanes.batches.device["rows"].fill_(0)  # all lanes are full
    models.choose_arithmetic(experiment.precision)
    whole = seconds(lanes.step, device, words.repeat)
    found, roof = operations(lanes), roofs(device, words.size, words.repeat)
    rows = []
    with torch.no_grad():
        for key, one in found.items():
            each = seconds(one.again, device, words.repeat)
            peak = roof["bfloat16" if "bfloat16" in key else "float64" if "float64" in key else "float32"]
            least = max(one.bytes / roof["bytes"], one.flops / peak)
            rows.append(
                {
                    "operation": key,
                    "calls": one.calls,
                    "microseconds": round(1e6 * each, 2),
                    "milliseconds of a step": round(1e3 * each * one.calls, 4),
                    "MB": round(one.bytes / 1e6, 3),
                    "GFLOP": round(one.flops / 1e9, 4),
                    "GB/s": round(one.bytes / each / 1e9, 1),
                    "TFLOP/s": round(one.flops / each / 1e12, 3),
                    "bound by": "bytes" if one.bytes / roof["bytes"] >= one.flops / peak else "FLOPs",
                    "share of the roof": round(least / each, 3),
                }
            )
    rows.sort(key=lambda row: -float(str(row["milliseconds of a step"])))
    samples = lanes.count * experiment.federation.batch_size
    outcome = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "precision": experiment.precision,
        "lanes": lanes.count,
        "roofs, GB/s and TFLOP/s": {k: round(v / (1e9 if k == "bytes" else 1e12), 2) for k, v in roof.items()},
        "step ms": round(1e3 * whole, 4),
        "samples_per_second": round(samples / whole),
        "all operations, each by itself, ms": round(sum(float(str(row["milliseconds of a step"])) for row in rows), 3),
        "GFLOP of a step": round(sum(one.flops * one.calls for one in found.values()) / 1e9, 3),
        "operations": rows[:ROWS],
    }
    words.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
