"""Does bf16 cost accuracy? The same cohorts trained for the same rounds in TF32 and in bf16, over seeds.

python benchmarks/precision.py --data DIR --out results/precision.json --rounds 200 90 91 92
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from cpfl import method
from cpfl.data.given import Given
from cpfl.distillation.ensemble import Chunks, Precision, logits_of
from cpfl.engines.lanes import LaneEngine
from cpfl.models import fresh
from cpfl.objectives.classes import Classification
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

score = Classification().score


def accuracies(task: Task, states: list[dict[str, torch.Tensor]], device: torch.device) -> list[float]:
    """Each cohort's model on the test set, and the mean of their probabilities last; in float32 for both."""
    module = fresh(task.build, 0, "init", torch.float32).to(device)
    x = torch.as_tensor(task.data.test.x).to(device)
    y = torch.as_tensor(task.data.test.y).to(device)
    inputs = Chunks(len(x), lambda rows: task.data.transform(x[rows]), Precision(device, "float32"))
    found, mean = [], torch.zeros(len(x), task.data.classes, device=device)
    for state in states:
        module.load_state_dict(state)
        logits = logits_of(module, inputs)
        mean += torch.softmax(logits, dim=1)
        found.append(score(logits, y))
    return [*found, score(mean, y)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--cohorts", type=int, default=16)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("seeds", nargs="+", type=int)
    words = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for seed in words.seeds:
        for precision in ("tf32", "bf16"):
            rule = {"stopping.rule": "rounds", "stopping.rounds": words.rounds, "snapshots": ""}
            settings = {**rule, "cohorts": words.cohorts, "seed": seed, "precision": precision}
            experiment = experiment_file.with_settings(experiment_file.load("cifar10", words.set), settings)
            task = build_task(experiment, [words.data], Given())
            sessions, engine = method.open_sessions(task), LaneEngine(task, device)
            began = time.perf_counter()
            engine.train_cohorts(sessions, lambda session, closed: None)
            seconds = time.perf_counter() - began
            *teachers, ensemble = accuracies(task, [session.model for session in sessions], device)
            row = {
                "seed": seed,
                "precision": precision,
                "teachers": statistics.fmean(teachers),
                "ensemble": ensemble,
                "samples_per_second": sum(session.samples for session in sessions) / seconds,
            }
            rows.append(row)
            print(row, flush=True)
            name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
            about = {"machine": name, "torch": torch.__version__, "rounds": words.rounds, "cohorts": words.cohorts}
            words.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
