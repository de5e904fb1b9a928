"""Runs of a sweep side by side on one GPU: samples a second, the start, and the students.

Images are drawn: speed does not depend on their content. Students of 40,000 images, recipe cpfl.

    python benchmarks/sweep.py --rounds 150 --out sweep.json                 # n = 1, 4, 16, 64 with three seeds each
    python benchmarks/sweep.py --students 16 --epochs 20 --out students.json   # side by side, then one after the other
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import cpfl
from cpfl.engines.shared import RunEngine
from cpfl.settings import experiment_file
from cpfl.sweeps import RunProgress, SweepCallback, one_run

PUBLIC, TRAIN, TEST = 40_000, 50_000, 10_000


class Watch(SweepCallback):
    """When how many samples were trained on, and when students learned."""

    def __init__(self, each: int) -> None:
        self.began, self._each = time.perf_counter(), each  # samples of a round of all cohorts
        self.rounds: dict[str, float] = {}  # of all cohorts, by run
        self.trained: list[tuple[float, float]] = []  # (seconds, samples)
        self.epochs: list[float] = []  # seconds

    def on_progress(self, progress: RunProgress) -> None:
        """Note the time."""
        now = time.perf_counter() - self.began
        if progress.epoch:
            self.epochs.append(now)
        elif progress.rounds:
            self.rounds[progress.name] = progress.rounds / progress.cohorts
            self.trained.append((now, self._each * sum(self.rounds.values())))

    def rate(self) -> float:
        """Samples a second between a tenth and nine tenths of all."""
        total = self.trained[-1][1]
        middle = [one for one in self.trained if 0.1 * total <= one[1] <= 0.9 * total]
        (first, before), (last, after) = middle[0], middle[-1]
        return (after - before) / (last - first)


def images(scale: float) -> dict[str, Any]:
    """A training, a test and a public set."""
    rng = np.random.default_rng(0)
    sizes = [int(scale * size) for size in (TRAIN, TEST, PUBLIC)]
    train, test, public = (rng.integers(0, 256, (size, 3, 32, 32), np.uint8) for size in sizes)
    labels = [rng.integers(0, 10, size) for size in sizes]
    return {"train": (train, labels[0]), "test": (test, labels[1]), "public": public}


def sweep(words: argparse.Namespace, cohorts: list[int], seeds: list[int], **settings: Any) -> dict[str, Any]:
    """One sweep, timed."""
    common = {"devices.trace": "synthetic", "snapshots": "", "distillation.recipe": "cpfl", "data.public_fit": "exact"}
    common |= {"stopping.rule": "rounds", "stopping.rounds": words.rounds, "precision": words.precision}
    base = experiment_file.with_settings(experiment_file.load("cifar10", words.set), common | settings)
    given = images(words.scale)
    watch = Watch(round(0.9 * len(given["train"][0])))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(one_run, "INTERVAL_SECONDS", 0.0):
        arguments: dict[str, Any] = {"engine": words.engine, "device": words.device, **given}
        runs = cpfl.sweep(base, cohorts=cohorts, seeds=seeds, out=Path(folder) / "s", callback=watch, **arguments)
        samples = sum(run.summary["samples"] for run in runs)
    seconds = time.perf_counter() - watch.began
    return {
        "runs": len(runs),
        "samples": samples,
        "samples_per_second": round(watch.rate()),
        "seconds to the first round": round(watch.trained[0][0], 2),
        "seconds to the last round": round(watch.trained[-1][0], 2),
        "seconds from the first to the last epoch": round(watch.epochs[-1] - watch.epochs[0], 2) if watch.epochs else 0,
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--students", type=int, default=0, help="runs that hardly train, for their students")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--engine", default="lanes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sets, for a test without a GPU")
    parser.add_argument("--cohorts", default="1,4,16,64")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    outcome: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "precision": words.precision}
    epochs = {"distillation.epochs": words.epochs}
    if words.students:
        seeds = list(range(90, 90 + words.students))
        few = {"stopping.rounds": 2, "max_rounds": 2, **epochs}
        sweep(words, [4], seeds[:1], **few | {"distillation.epochs": 1})  # compiles
        outcome["side by side"] = sweep(words, [4], seeds, **few)
        with mock.patch.object(RunEngine, "pause"):
            outcome["one after the other"] = sweep(words, [4], seeds, **few)
    else:
        cohorts = [int(word) for word in words.cohorts.split(",")]
        outcome |= sweep(words, cohorts, list(range(90, 90 + words.seeds)), **epochs)
    words.out.write_text(json.dumps(outcome, indent=2) + "\n")
    print(json.dumps(outcome, indent=2))


if __name__ == "__main__":
    main()
