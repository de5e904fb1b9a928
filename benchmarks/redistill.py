"""What does `cpfl report --redistill` take, against each student by itself? One run, both alternately.

python benchmarks/redistill.py --out redistill.json --set cohorts=8
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import cpfl
from cpfl.distillation import ensemble
from cpfl.distillation.ensemble import Chunks, logits_of
from cpfl.runs.folder import RunFolder
from cpfl.sweeps import redistill


def together(run: Path, device: str) -> int:
    """As the command does it; the number of students."""
    return len(cpfl.redistill([run], device=device))


def apart(run: Path, device: str) -> int:
    """One `cpfl distill` after the other."""
    wanted = redistill.missing(RunFolder.open(run))
    for settings in wanted:
        cpfl.distill(run, device=device, **settings)
    return len(wanted)


def timed(work: Callable[[Path, str], int], run: Path, device: str) -> dict[str, Any]:
    """Seconds, CPU seconds, and forward passes of teachers over one view of a set."""
    passes = 0

    def counted(module: nn.Module, inputs: Chunks) -> Tensor:
        nonlocal passes
        passes += inputs.key is not None
        return logits_of(module, inputs)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(ensemble, "logits_of", counted):
        shutil.copytree(run, Path(folder) / "run")
        began, cpu = time.perf_counter(), time.process_time()
        students = work(Path(folder) / "run", device)
        spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return {**spent, "students": students, "passes": passes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="digits")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"together": [], "apart": []}
    with tempfile.TemporaryDirectory() as folder:
        experiment = cpfl.load_experiment(words.preset, ["snapshots=15m", *words.set])
        run = cpfl.run(experiment, out=Path(folder) / "run", device=words.device).path
        for _ in range(words.repeats):
            rows["together"].append(timed(together, run, words.device))
            rows["apart"].append(timed(apart, run, words.device))
    medians = {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]} for name, found in rows.items()
    }
    outcome = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "settings": words.set,
        "medians": medians,
        "times as fast": medians["apart"]["seconds"] / medians["together"]["seconds"],
        "less CPU time by": medians["apart"]["cpu_seconds"] / medians["together"]["cpu_seconds"],
    }
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")
    print(json.dumps(outcome, indent=2))


if __name__ == "__main__":
    main()
