"""What are the cohorts' models worth together, joined in several ways, as training goes on? From a run's snapshots.

The clients' validation samples say which way to choose; the test set stands beside them, for the reader alone. A run
that kept `snapshots = "50 rounds"` is looked at after every so many rounds, and with means of its last snapshots; one
that kept them by hours, with the models that teach (each cohort's best) and with the newest that were kept. Beside
every look stands what the judges of the rule `joint` say and what asking them costs: `rules.py` tells from that where
the rules would have stopped.

    python benchmarks/paper/joins.py --data DIR --out results/paper/joins.json RUN...

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

import kept
import numpy as np
import torch
from torch import Tensor

from cpfl import experiment_file
from cpfl.data.federated import Given
from cpfl.distillation.distil import per_cent
from cpfl.distillation.judges import JUDGES, MOST_PUBLIC
from cpfl.distillation.targets import Chunks, Numbers, logits_of, teacher_modules
from cpfl.distillation.weights import class_weights
from cpfl.models import State, choose_arithmetic
from cpfl.problem import Problem, prepare
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.setting_types import interval

LAST = (2, 4, 8)  # snapshots that are averaged
Logits = dict[str, Tensor]  # by the set that was answered: (N, T, C)


def joins(logits: Logits, labels_NC: Tensor) -> dict[str, Logits]:
    """What all of them say, by the way in which they are joined."""
    chances = {name: torch.softmax(z, dim=2) for name, z in logits.items()}
    logs = {name: torch.log_softmax(z, dim=2) for name, z in logits.items()}
    surprise = {name: -(p * logs[name]).sum(dim=2, keepdim=True) for name, p in chances.items()}
    sure = {name: torch.exp(-surprise[name]) * p for name, p in chances.items()}
    mean_N1C, std_N1C = logits["public"].mean(1, keepdim=True), logits["public"].std(1, keepdim=True)
    standard = {name: (z - mean_N1C) / std_N1C.clamp_min(1e-6) for name, z in logits.items()}
    uniform_NC = torch.full_like(labels_NC, 1 / len(labels_NC))
    found = {}
    for kind, parts in (("logits", logits), ("log-probabilities", logs), ("probabilities", chances)):
        found[f"{kind}, labels"] = weighted(parts, labels_NC)
        found[f"{kind}, uniform"] = weighted(parts, uniform_NC)
    found["logits standardised over the public set, labels"] = weighted(standard, labels_NC)
    found["logits standardised over the public set, uniform"] = weighted(standard, uniform_NC)
    found["probabilities, by confidence"] = weighted(sure, uniform_NC)
    found["probabilities, fitted on the public set"] = weighted(chances, fitted(chances["public"]))
    return found


def weighted(parts: Logits, weights_NC: Tensor) -> Logits:
    """Their sum, each class with weights of its own."""
    return {name: torch.einsum("ntc,nc->tc", part, weights_NC) for name, part in parts.items()}


def fitted(chances_NTC: Tensor, turns: int = 10) -> Tensor:
    """Weights without a label: a teacher counts as much for a class as it gives the class where all together see it."""
    weights_NC = torch.full_like(chances_NTC[:, 0], 1 / len(chances_NTC))
    for _ in range(turns):
        joint_TC = torch.einsum("ntc,nc->tc", chances_NTC, weights_NC)
        joint_TC = joint_TC / joint_TC.sum(dim=1, keepdim=True)
        trust_NC = torch.einsum("ntc,tc->nc", chances_NTC, joint_TC) / joint_TC.sum(dim=0)
        weights_NC = trust_NC / trust_NC.sum(dim=0)
    return weights_NC


def inputs(x: Tensor, transform: Callable[[Tensor], Tensor], rows: slice) -> Tensor:
    """What a model is shown of these samples."""
    return transform(x[rows])


class Looking:
    """A run's problem on a device: public, validation and test samples, and the modules that answer."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        data, experiment = problem.data, problem.experiment
        assert data.train.y is not None
        assert data.test.y is not None
        choose_arithmetic(experiment.precision)
        numbers, cohorts = Numbers(device, experiment.precision), range(experiment.cohorts)
        self._modules = teacher_modules(problem, cohorts, numbers)
        weights = class_weights(problem.label_counts, "labels", cohorts)
        self._labels_NC = torch.tensor(weights, dtype=data.transform.dtype, device=device)
        held, _ = data.clients.held_out()
        count = min(MOST_PUBLIC, len(data.public))
        self._inputs, self._y = {}, {}
        for name, x, y in (
            ("public", data.public.x[np.arange(count) * len(data.public) // count], None),
            ("validation", data.train.x[held], data.train.y[held]),
            ("test", data.test.x, data.test.y),
        ):
            made = data.transform if name != "public" else data.public_transform
            self._inputs[name] = Chunks(len(x), partial(inputs, torch.as_tensor(x).to(device), made), numbers)
            if y is not None:
                self._y[name] = torch.as_tensor(y).to(device)
        settings = experiment_file.with_settings(experiment, {"distillation.recipe": "cpfl"}).distillation
        self._judges = {name: judge(problem, settings, device) for name, judge in JUDGES.items()}
        self.costs = {name: judge.cost().cpu_seconds / 3600 for name, judge in self._judges.items()}

    def __call__(self, states: Sequence[State]) -> dict[str, Any]:
        """The accuracy of every join and of the teachers, and what the judges say."""
        logits = {name: self._answers(states, chunks) for name, chunks in self._inputs.items()}
        found = joins(logits, self._labels_NC)
        public_TC = found["probabilities, labels"]["public"]
        public_TC = public_TC / public_TC.sum(dim=1, keepdim=True)
        entropy = -torch.xlogy(public_TC, public_TC).sum(dim=1).mean().item() / math.log(public_TC.shape[1])
        return {
            "teachers": round(sum(per_cent(z, self._y["test"]) for z in logits["test"]) / len(states), 3),
            "judged": {name: judge.look(states).value for name, judge in self._judges.items()} | {
                "sureness": 100 * (1 - entropy)
            },
            **{
                name: {join: round(per_cent(said[name], y), 3) for join, said in found.items()}
                for name, y in self._y.items()
            },
        }  # fmt: skip

    def _answers(self, states: Sequence[State], chunks: Chunks) -> Tensor:
        answers = []
        for module, state in zip(self._modules, states, strict=True):
            module.load_state_dict(state)
            answers.append(logits_of(module, chunks).float())
        return torch.stack(answers)


def moments(folder: RunFolder, every: int) -> Iterator[tuple[str, int | None, list[list[Path]]]]:
    """What is looked at: its name, the round if all cohorts are at it, and of each cohort the models to be averaged."""
    experiment = folder.experiment()
    cohorts = range(experiment.cohorts)
    kept = [{int(file.stem.rpartition("-")[2]): file for file in folder.snapshots(cohort)} for cohort in cohorts]
    if interval(experiment.snapshots)[0] == "rounds":
        shared = [number for number in sorted(set.intersection(*map(set, kept))) if number % every == 0]
        for number in shared:
            yield f"round {number}", number, [[one[number]] for one in kept]
        for count in (count for count in LAST if count <= len(shared)):
            yield f"mean of the last {count}", None, [[one[number] for number in shared[-count:]] for one in kept]
    else:
        newest = [one[max(one)] if one else folder.start(cohort) for cohort, one in enumerate(kept)]
        yield "newest that were kept", None, [[path] for path in newest]
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
        looking = Looking(prepare(experiment, words.data, Given()), torch.device(words.device))
        lines = [records.read(folder.rounds(cohort)) for cohort in range(experiment.cohorts)]
        for name, number, models in moments(folder, words.every):
            spent = math.fsum(record["cpu_seconds"] for line in lines for record in line[:number]) / 3600
            about = {"folder": kept.name_of(path), "n": experiment.cohorts, "seed": experiment.seed}
            found = looking([mean(paths) for paths in models])
            row = about | {"models": name, "cpu_hours": spent, "judging": looking.costs} | found
            print(json.dumps(row), flush=True)
            kept.add(words.out, [row], ("folder", "models"))


if __name__ == "__main__":
    main()
