"""Do lanes train what the plain loop trains? Whole runs on float64, ragged clients, n from 1 to M, on this device.

On a GPU also: how exact the kernels are, whether a run repeats bit by bit, and what happens when memory is short.

python benchmarks/lanes_equal.py --out results/lanes-equal.json
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import cpfl
from cpfl import experiment_file
from cpfl.bench import drawn
from cpfl.engines import choice
from cpfl.problem import prepare
from cpfl.stacked import conv

BASE = {"precision": "float64", "max_rounds": 8, "distillation.epochs": 1}
ALLOWED = (1500, 1000, 750, 600, 500, 400)  # MiB for the lanes, tried until they are too few
CASES = {
    "n = 4, momentum": {},
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 40},
    "no momentum": {"federation.momentum": 0.0},
    "partial, by samples": {"federation.participation": 0.4, "federation.weights": "samples"},
    "local steps": {"federation.local_steps": 3},
    "batch larger than most clients": {"federation.batch_size": 64},
    "convolutions": {"model.name": "femnist-cnn", "max_rounds": 3},
}


def kernels(device: torch.device) -> list[dict[str, Any]]:
    """How far the lane layers' kernels are from torch's own layers in exact arithmetic, as a share of the largest."""
    rows = []
    for name, numbers in (("exact", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        worst: dict[str, float] = {}
        for side, channels, outputs in ((36, 4, 32), (19, 32, 32), (11, 32, 64)):
            x, w = torch.randn(8, 20, side, side, channels), torch.randn(8, 5, 5, channels, outputs)
            x, w = (value.to(device, numbers) for value in (x, w))
            torch.backends.cuda.matmul.allow_tf32 = name != "exact"
            ours = conv.lane_conv(x, w, None)
            g = torch.randn_like(ours)
            slopes = conv.lane_conv_slopes(x, g)
            # The same numbers in double precision, by torch's own convolution.
            right = conv.lane_conv(x.double().cpu(), w.double().cpu(), None)
            steep = conv.lane_conv_slopes(x.double().cpu(), g.double().cpu())
            for what, mine, true in (("convolution", ours, right), ("weights' gradient", slopes, steep)):
                away = ((mine.double().cpu() - true).abs().max() / true.abs().max()).item()
                worst[what] = max(worst.get(what, 0.0), away)
        rows.append({"arithmetic": name, **worst})
        print(rows[-1], flush=True)
    return rows


def repeats(precision: str) -> dict[str, Any]:
    """Two runs of one experiment on the GPU, compared bit by bit."""
    settings = {**BASE, "precision": precision, "model.name": "femnist-cnn", "max_rounds": 10}
    with tempfile.TemporaryDirectory() as place:
        one, two = (cpfl.run("digits", out=Path(place) / k, engine="lanes", settings=settings) for k in "ab")
        same = all(torch.equal(one.model[name], value) for name, value in two.model.items())
        found = {"precision": precision, "records": one.rounds == two.rounds, "global model": same}
    print(found, flush=True)
    return found


def short_of_memory(device: torch.device) -> dict[str, Any]:
    """How many lanes are left when most of the GPU's memory is not to be had."""
    settings = {"cohorts": 16, "precision": "bf16", "devices.trace": "synthetic", "data.public_fit": "exact"}
    experiment = experiment_file.with_settings(experiment_file.load("cifar10", []), settings)
    problem = prepare(experiment, [], drawn(experiment, 50_000))
    notes: list[str] = []
    total = torch.cuda.get_device_properties(device).total_memory
    for allowed in ALLOWED:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + allowed * 2**20) / total)
        lanes = choice.engine("lanes", problem, device, notes.append)
        torch.cuda.set_per_process_memory_fraction(1.0)
        found = {"allowed MiB": allowed, "notes": notes, "lanes": lanes._large.count}  # type: ignore[attr-defined]
        print(found, flush=True)
        if notes:
            break
        del lanes
        gc.collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    words = parser.parse_args()
    rows = []
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as place:
            plain, lanes = (
                cpfl.run("digits", out=Path(place) / e, engine=e, device=words.device, settings=BASE | settings)
                for e in ("reference", "lanes")
            )
            worst = 0.0
            for a, b in zip(plain.rounds, lanes.rounds, strict=True):
                for key, value in a.items():
                    if isinstance(value, float):
                        worst = max(worst, abs(value - b[key]))
                    else:
                        assert value == b[key], (name, key, value, b[key])
            model = max((plain.model[k] - lanes.model[k]).abs().max().item() for k in plain.model)
            rows.append({"case": name, "rounds": len(plain.rounds), "records": worst, "global model": model})
            print(f"{name:32} {len(plain.rounds):5} rounds   records {worst:.1e}   model {model:.1e}", flush=True)
    outcome: dict[str, Any] = {"machine": "cpu", "torch": torch.__version__, "rows": rows}
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")
    if torch.cuda.is_available():
        device = torch.device("cuda")
        outcome |= {"machine": torch.cuda.get_device_name(), "kernels": kernels(device)}
        outcome["repeats"] = [repeats(precision) for precision in ("tf32", "bf16")]
        words.out.write_text(json.dumps(outcome, indent=2) + "\n")
        outcome["short of memory"] = short_of_memory(device)
        words.out.write_text(json.dumps(outcome, indent=2) + "\n")


if __name__ == "__main__":
    main()
