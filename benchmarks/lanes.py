"""How many samples a second does a whole run train in lanes, and how many in the plain loop?

Rounds, selection, augmentation, validation, aggregation and records are included; the rate is taken while all cohorts
are running, after a few rounds to warm up.

    python benchmarks/lanes.py --data DIR --out results/lanes.json
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from cpfl import experiment_file, method
from cpfl.api import Silent
from cpfl.data.federated import Given
from cpfl.engines.base import Engine
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.reference import ReferenceEngine
from cpfl.federation.session import Closed, Session
from cpfl.opening import describe
from cpfl.problem import prepare
from cpfl.runs.folder import RunFolder

WARM_UP = 3  # rounds of every cohort before the window


class Stopwatch(Silent):
    """Samples and seconds from when every cohort has warmed up until the first one ends."""

    def __init__(self, cohorts: int, rounds: int) -> None:
        self._cohorts, self._rounds = cohorts, rounds
        self._warm: set[int] = set()
        self.first = self.began = self.ended = 0.0
        self.samples = 0

    def on_round(self, session: Session, closed: Closed) -> None:
        now = time.perf_counter()
        self.first = self.first or now
        if self.began and not self.ended:
            self.samples += closed.record.samples
            if session.round >= self._rounds:
                self.ended = now
        if session.round >= WARM_UP:
            self._warm.add(session.cohort)
            if len(self._warm) == self._cohorts and not self.began:
                self.began = now


def measure(
    settings: dict[str, Any], kind: str, lanes: int, rounds: int, data: Path, device: torch.device
) -> dict[str, Any]:
    """One whole federation of so many rounds."""
    preset = settings.pop("preset", "cifar10")
    rule = {"stopping.rule": "rounds", "stopping.rounds": rounds + WARM_UP, "snapshots": ""}
    experiment = experiment_file.with_settings(experiment_file.load(preset), {**settings, **rule})
    problem = prepare(experiment, [data], Given())
    watch = Stopwatch(experiment.cohorts, rounds + WARM_UP)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run", experiment, describe(problem, data))
        began = time.perf_counter()
        engine: Engine = LaneEngine(problem, device, lanes) if kind == "lanes" else ReferenceEngine(problem, device)
        method.federate(problem, method.plan(problem), folder, engine, watch)
        folder.unlock()
    return {
        "engine": kind,
        "lanes": lanes,
        "preset": preset,
        "cohorts": experiment.cohorts,
        "precision": experiment.precision,
        "samples_per_second": watch.samples / (watch.ended - watch.began),
        "seconds_to_first_round": watch.first - began,
        "window_seconds": watch.ended - watch.began,
        "gpu_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("cases", nargs="+", help="engine:lanes:cohorts:precision[:preset], such as lanes:100:16:bf16")
    words = parser.parse_args()
    device = torch.device(words.device)
    rows = []
    for case in words.cases:
        kind, lanes, cohorts, precision, *preset = case.split(":")
        settings = {"cohorts": int(cohorts), "precision": precision, **experiment_file.parse_assignments(words.set)}
        if preset:
            settings["preset"] = preset[0]
        rounds = words.rounds if kind == "lanes" else 2
        row = measure(settings, kind, int(lanes), rounds, words.data, device)
        rows.append(row)
        print(
            f"{case:28} {row['samples_per_second']:12,.0f} samples/s   first round after "
            f"{row['seconds_to_first_round']:5.1f} s   {row['gpu_memory_gb'] or 0:.1f} GB",
            flush=True,
        )
        name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
        about = {"machine": name, "torch": torch.__version__, "rounds": words.rounds, "settings": words.set}
        words.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
