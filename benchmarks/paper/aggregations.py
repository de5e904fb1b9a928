"""How accurate is the ensemble of all cohort models during training, by aggregation? From a run's snapshots.

The accuracy on the clients' validation samples decides; the test set is for the reader alone. A run with
`snapshots = "50 rounds"` is evaluated every so many rounds, and with means of its last snapshots. A run with snapshots
by hours is evaluated with its teachers (each cohort's best model) and its newest snapshots. Every row also has the
metrics of the rule `joint` and what their evaluation costs: `rules.py` computes from them where it would have stopped.

    python benchmarks/paper/aggregations.py --data DIR --out results/paper/aggregations.json RUN...

Axes: N cohorts, T samples, C classes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tables
import torch
from torch import Tensor

from cpfl.data.given import Given
from cpfl.distillation.ensemble import Chunks, Ensemble, Precision, logits_of
from cpfl.distillation.evaluation import EVALUATORS, MAX_PUBLIC
from cpfl.models import State, choose_arithmetic
from cpfl.objectives.classes import Classification
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.settings import experiment_file
from cpfl.settings.types import interval
from cpfl.task.task import Task, build_task

score = Classification().score
LAST = (2, 4, 8)  # snapshots that are averaged
Outputs = dict[str, Tensor]  # by set of samples: (N, T, C)


def aggregations(logits: Outputs, labels_NC: Tensor) -> dict[str, Outputs]:
    """The prediction of the ensemble, by aggregation and weights."""
    probabilities = {name: torch.softmax(z, dim=2) for name, z in logits.items()}
    logs = {name: torch.log_softmax(z, dim=2) for name, z in logits.items()}
    entropies = {name: -(p * logs[name]).sum(dim=2, keepdim=True) for name, p in probabilities.items()}
    confident = {name: torch.exp(-entropies[name]) * p for name, p in probabilities.items()}
    mean_N1C, std_N1C = logits["public"].mean(1, keepdim=True), logits["public"].std(1, keepdim=True)
    standard = {name: (z - mean_N1C) / std_N1C.clamp_min(1e-6) for name, z in logits.items()}
    uniform_NC = torch.full_like(labels_NC, 1 / len(labels_NC))
    found = {}
    for kind, parts in (("logits", logits), ("log-probabilities", logs), ("probabilities", probabilities)):
        found[f"{kind}, labels"] = weighted(parts, labels_NC)
        found[f"{kind}, uniform"] = weighted(parts, uniform_NC)
    found["logits standardised over the public set, labels"] = weighted(standard, labels_NC)
    found["logits standardised over the public set, uniform"] = weighted(standard, uniform_NC)
    found["probabilities, by confidence"] = weighted(confident, uniform_NC)
    found["probabilities, fitted on the public set"] = weighted(probabilities, fitted(probabilities["public"]))
    return found


def weighted(parts: Outputs, weights_NC: Tensor) -> Outputs:
    """The weighted sum over cohorts, each class with its own weights."""
    return {name: torch.einsum("ntc,nc->tc", part, weights_NC) for name, part in parts.items()}


def fitted(probabilities_NTC: Tensor, iterations: int = 10) -> Tensor:
    """Weights without labels: a teacher's mean probability of a class where the ensemble predicts that class."""
    weights_NC = torch.full_like(probabilities_NTC[:, 0], 1 / len(probabilities_NTC))
    for _ in range(iterations):
        joint_TC = torch.einsum("ntc,nc->tc", probabilities_NTC, weights_NC)
        joint_TC = joint_TC / joint_TC.sum(dim=1, keepdim=True)
        trust_NC = torch.einsum("ntc,tc->nc", probabilities_NTC, joint_TC) / joint_TC.sum(dim=0)
        weights_NC = trust_NC / trust_NC.sum(dim=0)
    return weights_NC


def inputs(x: Tensor, transform: Callable[[Tensor], Tensor], rows: slice) -> Tensor:
    """The model inputs of these samples."""
    return transform(x[rows])


class EnsembleEvaluation:
    """Evaluates the cohort models of a task on public, validation and test samples."""

    def __init__(self, task: Task, device: torch.device) -> None:
        data, experiment = task.data, task.experiment
        assert data.train.y is not None
        assert data.test.y is not None
        choose_arithmetic(experiment.precision)
        precision = Precision(device, experiment.precision)
        settings = experiment_file.with_settings(experiment, {"distillation.recipe": "cpfl"}).distillation
        by_labels = settings.model_copy(update={"weights": "labels"})
        ensemble = Ensemble(task, range(experiment.cohorts), by_labels, precision)
        self._modules = ensemble.modules
        self._labels_NC = torch.tensor(ensemble.weights_NC, dtype=data.transform.dtype, device=device)
        held, _ = data.clients.held_out()
        count = min(MAX_PUBLIC, len(data.public))
        self._inputs, self._y = {}, {}
        for name, x, y in (
            ("public", data.public.x[np.arange(count) * len(data.public) // count], None),
            ("validation", data.train.x[held], data.train.y[held]),
            ("test", data.test.x, data.test.y),
        ):
            made = data.transform if name != "public" else data.public_transform
            self._inputs[name] = Chunks(len(x), partial(inputs, torch.as_tensor(x).to(device), made), precision)
            if y is not None:
                self._y[name] = torch.as_tensor(y).to(device)
        self._evaluators = {name: kind(task, settings, device) for name, kind in EVALUATORS.items()}
        self.cpu_hours = {name: evaluator.cost().cpu_seconds / 3600 for name, evaluator in self._evaluators.items()}

    def __call__(self, states: Sequence[State]) -> dict[str, Any]:
        """The accuracy of the teachers and of every aggregation, and the metrics of the rule `joint`."""
        logits = {name: self._logits(states, chunks) for name, chunks in self._inputs.items()}
        found = aggregations(logits, self._labels_NC)
        public_TC = found["probabilities, labels"]["public"]
        public_TC = public_TC / public_TC.sum(dim=1, keepdim=True)
        entropy = -torch.xlogy(public_TC, public_TC).sum(dim=1).mean().item() / math.log(public_TC.shape[1])
        metrics = {name: evaluator.evaluate(states)[0] for name, evaluator in self._evaluators.items()}
        return {
            "teachers": round(sum(score(z, self._y["test"]) for z in logits["test"]) / len(states), 3),
            "evaluations": metrics | {"confidence": 100 * (1 - entropy)},
            **{
                name: {aggregation: round(score(outputs[name], y), 3) for aggregation, outputs in found.items()}
                for name, y in self._y.items()
            },
        }  # fmt: skip

    def _logits(self, states: Sequence[State], chunks: Chunks) -> Tensor:
        logits = []
        for module, state in zip(self._modules, states, strict=True):
            module.load_state_dict(state)
            logits.append(logits_of(module, chunks).float())
        return torch.stack(logits)


def moments(folder: RunFolder, every: int) -> Iterator[tuple[str, int | None, list[list[Path]]]]:
    """What is evaluated: its name, the round if all cohorts are at it, and of each cohort the models to be averaged."""
    experiment = folder.experiment()
    cohorts = range(experiment.cohorts)
    kept = [[one for line in records.read(folder.rounds(i)) for one in line.get("snapshots", ())] for i in cohorts]
    snapshots = [{number: folder.snapshot(i, number) for number in kept[i]} for i in cohorts]
    if interval(experiment.snapshots)[0] == "rounds":
        shared = [number for number in sorted(set.intersection(*map(set, snapshots))) if number % every == 0]
        for number in shared:
            yield f"round {number}", number, [[one[number]] for one in snapshots]
        for count in (count for count in LAST if count <= len(shared)):
            yield f"mean of the last {count}", None, [[one[number] for number in shared[-count:]] for one in snapshots]
    else:
        newest = [one[max(one)] if one else folder.start(cohort) for cohort, one in enumerate(snapshots)]
        yield "newest snapshots", None, [[path] for path in newest]
    yield "teachers", None, [[folder.teacher(cohort)] for cohort in cohorts]


def mean(paths: list[Path]) -> State:
    """One model of several."""
    states = [load_state(path) for path in paths]
    return {name: sum((state[name] for state in states[1:]), value) / len(states) for name, value in states[0].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=50, help="rounds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("runs", nargs="+", type=Path)
    words = parser.parse_args()
    for path in words.runs:
        folder = RunFolder.open(path)
        experiment = folder.experiment()
        evaluate = EnsembleEvaluation(build_task(experiment, words.data, Given()), torch.device(words.device))
        lines = [records.read(folder.rounds(cohort)) for cohort in range(experiment.cohorts)]
        for name, number, models in moments(folder, words.every):
            spent = math.fsum(record["cpu_seconds"] for line in lines for record in line[:number]) / 3600
            about = {"folder": tables.name_of(path), "n": experiment.cohorts, "seed": experiment.seed}
            found = evaluate([mean(paths) for paths in models])
            row = about | {"models": name, "cpu_hours": spent, "evaluation_cpu_hours": evaluate.cpu_hours} | found
            print(json.dumps(row), flush=True)
            tables.add(words.out, [row], ("folder", "models"))


if __name__ == "__main__":
    main()
