"""What are the cohorts' models worth together, joined in several ways, as training goes on? From a run's snapshots.

The clients' validation samples say which way to choose; the test set stands beside them, for the reader alone.

    python benchmarks/paper/joins.py --data DIR --out results/paper/joins.json RUN...
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpfl.data.federated import Given
from cpfl.distillation.distil import per_cent
from cpfl.distillation.targets import Chunks, Numbers, logits_of, placed
from cpfl.distillation.weights import class_weights, cohort_counts
from cpfl.models import State, choose_arithmetic, fresh
from cpfl.problem import Problem, prepare
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state

JOINS = ("logits, labels", "logits, uniform", "probabilities, labels", "probabilities, uniform", "confidence")


def part(join: str, logits_TC: Tensor, weight_C: Tensor, n: int) -> Tensor:
    """What a teacher adds."""
    kind, _, weights = join.partition(", ")
    share = weight_C if weights == "labels" else torch.full_like(weight_C, 1 / n)
    if kind == "logits":
        return share * logits_TC
    chances = torch.softmax(logits_TC, dim=1)
    if kind == "confidence":  # the surer of itself, the more
        surprise = -(chances * torch.log_softmax(logits_TC, dim=1)).sum(dim=1, keepdim=True)
        return torch.exp(-surprise) * chances
    return share * chances


class Looking:
    """A run's problem on a device: its validation and test samples, and the module that answers."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        data, experiment = problem.data, problem.experiment
        assert data.train.y is not None
        choose_arithmetic(experiment.precision)
        self._n, self._numbers = experiment.cohorts, Numbers(device, experiment.precision)
        self._module = placed(fresh(problem.build, experiment.seed, "init", data.transform.dtype), self._numbers)
        weights = class_weights(cohort_counts(data.counts, problem.plan), "labels", range(self._n))
        self._weights_NC = torch.tensor(weights, dtype=data.transform.dtype, device=device)
        held, _ = data.clients.held_out()
        self._sets = {}
        for name, x, y in (("validation", data.train.x[held], data.train.y[held]), ("test", data.test.x, data.test.y)):
            there = torch.as_tensor(x).to(device)
            inputs = Chunks(len(x), lambda rows, there=there: data.transform(there[rows]), self._numbers)
            self._sets[name] = inputs, torch.as_tensor(y).to(device)

    def __call__(self, states: Iterable[State]) -> dict[str, Any]:
        """Accuracies of every join, and of the teachers."""
        totals: dict[str, dict[str, Tensor]] = {name: {} for name in self._sets}
        teachers = []
        for state, weight_C in zip(states, self._weights_NC, strict=True):
            self._module.load_state_dict(state)
            for name, (inputs, y) in self._sets.items():
                logits = logits_of(self._module, inputs)
                if name == "test":
                    teachers.append(per_cent(logits, y))
                for join in JOINS:
                    more = part(join, logits, weight_C, self._n)
                    totals[name][join] = totals[name][join] + more if join in totals[name] else more
        worth = {
            name: {join: round(per_cent(total, self._sets[name][1]), 3) for join, total in found.items()}
            for name, found in totals.items()
        }
        return {"teachers": sum(teachers) / len(teachers), **worth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=50, help="rounds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("runs", nargs="+", type=Path)
    words = parser.parse_args()
    rows = []
    for path in words.runs:
        folder = RunFolder.open(path)
        experiment = folder.experiment()
        looking = Looking(prepare(experiment, [words.data], Given()), torch.device(words.device))
        cohorts = range(experiment.cohorts)
        lines = [records.read(folder.rounds(cohort)) for cohort in cohorts]
        kept = sorted({int(file.stem.rpartition("-")[2]) for file in folder.snapshots(0)})
        for number in (number for number in kept if number % words.every == 0 or number == kept[-1]):
            cpu = math.fsum(record["cpu_seconds"] for line in lines for record in line[:number]) / 3600
            found = looking(load_state(folder.snapshot(cohort, number)) for cohort in cohorts)
            rows.append({"n": experiment.cohorts, "seed": experiment.seed, "round": number, "cpu_hours": cpu, **found})
            print(json.dumps(rows[-1]), flush=True)
            words.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
