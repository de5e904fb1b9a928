"""How long does a report over 100 finished runs take, and how large is its page? Real runs, copied with other seeds.

python benchmarks/report.py --out results/report.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cpfl
from cpfl.settings import experiment_file

NUMBERS = (1, 2, 4, 8, 16)
CASES = {"20 seeds": (range(20), (0.5,)), "4 seeds, 5 α": (range(4), (0.1, 0.3, 0.5, 1.0, 3.0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-rounds", type=int, default=600, help="of the runs that are copied")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        originals = [
            cpfl.run(
                "digits",
                out=Path(scratch) / f"n{n}",
                settings={"cohorts": n, "max_rounds": given.max_rounds, "distillation.epochs": 2},
                engine="lanes",
            ).path
            for n in NUMBERS
        ]
        for case, (seeds, alphas) in CASES.items():
            folder = Path(scratch) / "runs" / case
            for original in originals:
                for seed in seeds:
                    for alpha in alphas:
                        copy(original, folder / f"{original.name}-seed{seed}-{alpha}", seed, alpha)
            rows.append({"case": case, **measure(folder)})
            print(" · ".join(f"{key} {value}" for key, value in rows[-1].items()))
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"machine": machine, "cases": rows}, indent=2) + "\n")


def copy(original: Path, target: Path, seed: int, alpha: float) -> None:
    """The same run under another seed and α, its outcome shifted a little so that there is a spread."""
    shutil.copytree(original, target, ignore=shutil.ignore_patterns("models", "checkpoints", "snapshots"))
    experiment = experiment_file.read_stored(target / "experiment.toml")
    changed = experiment_file.with_settings(experiment, {"seed": seed, "data.alpha": alpha})
    (target / "experiment.toml").write_text(experiment_file.to_toml(changed))
    summary = json.loads((target / "summary.json").read_text())
    summary |= {"seed": seed, "hours": summary["hours"] * (1 + seed / 50), "name": changed.name}
    (target / "summary.json").write_text(json.dumps(summary))


def measure(folder: Path) -> dict[str, Any]:
    """The command as a user gives it, in a process of its own."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cpfl", "report", str(folder)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    return {
        "runs": len(list(folder.glob("*/run.json"))),
        "round_records": sum(file.read_bytes().count(b"\n") for file in folder.glob("*/rounds/*.jsonl")),
        "figure_files": len(list((folder / "figures").iterdir())),
        "page_mb": round((folder / "report.html").stat().st_size / 1e6, 2),
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    main()
