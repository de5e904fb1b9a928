"""How long does the distillation take? Teachers are untrained: their arithmetic is the same.

python benchmarks/distillation.py --data DIR --out results/distillation.json 16 200
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from cpfl import method, models
from cpfl.data.given import Given
from cpfl.runs.teachers import Teachers
from cpfl.settings import experiment_file
from cpfl.task.task import build_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("cases", nargs="+", type=int, help="numbers of teachers")
    words = parser.parse_args()
    device = torch.device(words.device)
    rows = []
    for teachers in words.cases:
        rule = {"cohorts": teachers, "data.public_limit": words.images, "distillation.epochs": words.epochs}
        experiment = experiment_file.with_settings(experiment_file.load("cifar10", words.set), rule)
        task = build_task(experiment, [words.data], Given())
        seeds = list(range(teachers))
        states = [models.state_of(models.fresh(task.build, seed, "init", torch.float32)) for seed in seeds]
        untrained = Teachers(seeds, [*states], hours=0.0, untrained=True, costs={}, accounts=[])
        began = time.perf_counter()
        outcome = method.distill(task, untrained, experiment.distillation, device, lambda record: None)
        row = {
            "teachers": teachers,
            "images": len(task.data.public),
            "epochs": words.epochs,
            "precision": experiment.precision,
            "seconds": time.perf_counter() - began,
            "accuracy": outcome.accuracies["student_accuracy"],
        }
        rows.append(row)
        print(row, flush=True)
        name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
        about = {"machine": name, "torch": torch.__version__, "settings": words.set}
        words.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
