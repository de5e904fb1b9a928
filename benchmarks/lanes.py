"""How many samples a second does a whole run train in lanes, and how many in the plain loop?

Rounds, selection, augmentation, validation, aggregation and records are included; the rate is taken while all cohorts
are running, after a few rounds to warm up. Without --data the images are drawn: equal work, and any size of it.

    python benchmarks/lanes.py --data DIR --out results/lanes.json reference:16:tf32 lanes:16:bf16
    python benchmarks/lanes.py --out results/growth.json --each 200 lanes:1:bf16:cifar10:1000
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from cpfl.data.given import Given
from cpfl.diagnostics import drawn, lasting, measure
from cpfl.engines.create import create_engine
from cpfl.settings import experiment_file
from cpfl.task.task import build_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--loop-rounds", type=int, default=2)
    parser.add_argument("--each", type=int, default=250, help="drawn samples for every client")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("cases", nargs="+", help="engine:cohorts:precision[:preset[:clients]], such as lanes:16:bf16")
    words = parser.parse_args()
    device = torch.device(words.device)
    rows = []
    for case in words.cases:
        kind, cohorts, precision, *more = case.split(":")
        rounds = words.rounds if kind != "reference" else words.loop_rounds
        settings = {"cohorts": int(cohorts), "precision": precision, **lasting(rounds)}
        if len(more) == 2:
            settings["clients"] = int(more[1])
        if words.data is None:
            settings |= {"devices.trace": "synthetic", "data.public_fit": "exact"}
        base = experiment_file.load(more[0] if more else "cifar10", words.set)
        experiment = experiment_file.with_settings(base, settings)
        given = Given() if words.data else drawn(experiment, words.each * experiment.clients)
        task = build_task(experiment, [words.data] if words.data else [], given)
        rate = measure(task, partial(create_engine, kind, task, device, print), rounds, device)
        rows.append({"case": case, **asdict(rate)})
        print(
            f"{case:32} {rate.samples_per_second:12,.0f} samples/s over {rate.window_seconds:5.1f} s   first round "
            f"after {rate.seconds_to_first_round:5.1f} s   {rate.gpu_memory_gb or 0:.1f} GB",
            flush=True,
        )
        name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
        data = "real" if words.data else f"drawn, {words.each} a client"
        about = {
            "machine": name,
            "torch": torch.__version__,
            "rounds": words.rounds,
            "settings": words.set,
            "data": data,
        }
        words.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
