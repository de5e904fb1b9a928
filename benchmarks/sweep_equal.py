"""Is every run of a sweep in shared lanes the run that it is alone? Float64, on this device.

python benchmarks/sweep_equal.py --out results/lanes/sweep-equal-h200.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import cpfl

ROUNDING = 1e-9  # of float64, over a whole run
BASE = {"precision": "float64", "max_rounds": 6, "distillation.epochs": 3}
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "n and seeds": ({}, {}),
    "server optimizers": ({}, {"federation.server": ["mean", "fedavgm", "fedyogi"]}),
    "rates, deadlines": (
        {"federation.deadline": 8, "federation.straggler_policy": "partial"}, {"federation.lr": [0.05, 0.1]},
    ),
    "clients with state": ({"federation.client": "scaffold", "federation.momentum": 0.0}, {}),
    "all models at once": ({"federation.server": "median"}, {}),
    "joint stopping": ({"stopping.rule": "joint", "stopping.eval_interval": 2}, {}),
    "convolutions": ({"model.name": "femnist-cnn", "max_rounds": 3}, {}),
}  # fmt: skip


def apart(ours: cpfl.Run, theirs: cpfl.Run) -> float:
    """The largest difference between records and models of two runs."""
    worst = 0.0
    for mine, other in zip(ours.rounds, theirs.rounds, strict=True):
        for key, value in other.items():
            if isinstance(value, float):
                worst = max(worst, abs(value - mine[key]))
            elif value != mine[key]:
                raise AssertionError(f"{ours.path.name}: {key} is {mine[key]}, not {value}")
    return max(worst, *(float((ours.model[name] - value).abs().max()) for name, value in theirs.model.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES], metavar="CASE")
    words = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    outcome: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "largest difference": {}}
    common: dict[str, Any] = {"engine": "lanes", "device": words.device}
    for case in words.cases:
        settings, over = CASES[case]
        with tempfile.TemporaryDirectory() as scratch:
            out, own = Path(scratch), BASE | settings
            runs = cpfl.sweep(
                "digits", cohorts=[1, 4], seeds=[90, 91], over=over, settings=own, out=out / "s", **common
            )
            some = [runs[0], runs[-1], runs[len(runs) // 2]]
            found = [apart(run, cpfl.run(run.experiment, out=out / str(k), **common)) for k, run in enumerate(some)]
        outcome["largest difference"][case] = max(found)
        print(case, len(runs), "runs:", max(found), flush=True)
        outcome["ok"] = max(outcome["largest difference"].values()) < ROUNDING
        words.out.write_text(json.dumps(outcome, indent=2) + "\n")
    sys.exit(not outcome["ok"])


if __name__ == "__main__":
    main()
