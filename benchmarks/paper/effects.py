"""What does each part of a recipe do to the student? One change at a time, on the same teachers of finished runs.

The accuracy on the clients' validation samples says which way to choose; the test set stands beside it.

    python benchmarks/paper/effects.py --data DIR --out results/paper/effects.json [--only "NAME;NAME"] RUN...
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import kept
import torch
from torch import nn

from cpfl import experiment_file
from cpfl.data.federated import Given
from cpfl.distillation.distil import Distilled, distil, mean_of
from cpfl.distillation.student import teach
from cpfl.experiment import Distillation
from cpfl.models import State
from cpfl.problem import Problem, prepare
from cpfl.runs import teachers
from cpfl.runs.folder import RunFolder, load_state

PAPER: dict[str, Any] = {"distillation.recipe": "paper"}
SAME = {**PAPER, "distillation.same_views": True}
OURS: dict[str, Any] = {"distillation.recipe": "cpfl"}
LATE = 20  # epochs
HALF = {"data.public_limit": 20_000}  # as many as there are of photographs
PHOTOGRAPHS = {"data.public": "photographs", "data.public_fit": "resize"}  # made by photographs.py
FOUR = {**OURS, "distillation.views": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "paper: log-probabilities": {**PAPER, "distillation.join": "log-probabilities"},
    "paper: uniform weights": {**PAPER, "distillation.weights": "uniform"},
    "paper: same view": SAME,
    "paper: 200 epochs": {**PAPER, "distillation.epochs": 200},
    "paper: 10,000 public images": {**PAPER, "data.public_limit": 10_000, "distillation.epochs": 200},
    "paper: 20,000 public images": {**PAPER, **HALF, "distillation.epochs": 100},
    "paper: photographs, shrunk": {**PAPER, **PHOTOGRAPHS, "distillation.epochs": 100},
    "paper: photographs, cropped": {**PAPER, **PHOTOGRAPHS, "data.public_fit": "crop", "distillation.epochs": 100},
    "paper: CIFAR-10 itself as public set": {**PAPER, "data.public": "cifar10"},
    "paper: 20,000 of CIFAR-10 itself": {**PAPER, **HALF, "data.public": "cifar10", "distillation.epochs": 100},
    "same view: 4 views without holes": {**SAME, "distillation.views": 4, "distillation.augment": "crop-flip"},
    "same view: probabilities, kl": {**SAME, "distillation.join": "probabilities", "distillation.loss": "kl"},
    "cpfl": OURS,
    "cpfl: not sharpened": {**OURS, "distillation.sharpen": 0.0},
    "cpfl: sharpened to 0.4": {**OURS, "distillation.sharpen": 0.4},
    "cpfl: uniform weights": {**OURS, "distillation.weights": "uniform"},
    "cpfl: fresh start": {**OURS, "distillation.start": "fresh"},
    "cpfl: no squares of others": {**OURS, "distillation.augment": "crop-flip"},
    "cpfl: a new view each epoch": {**OURS, "distillation.same_views": False},
    "cpfl: one view": {**OURS, "distillation.views": 1},
    "cpfl: 2 views": {**OURS, "distillation.views": 2},
    "cpfl: 50 epochs": {**OURS, "distillation.epochs": 50},
    "cpfl: 150 epochs": {**OURS, "distillation.epochs": 150},
    "cpfl: temperature 2": {**OURS, "distillation.temperature": 2.0},
    "cpfl: mse": {**OURS, "distillation.loss": "mse"},
    "cpfl: rate 0.008": {**OURS, "distillation.lr": 0.008},
    "cpfl: constant rate 0.001": {**OURS, "distillation.schedule": "constant", "distillation.lr": 0.001},
    "cpfl: logits, mse": {**OURS, "distillation.join": "logits", "distillation.loss": "mse"},
    "cpfl: 20,000 public images": {**OURS, **HALF},
    "cpfl: photographs, shrunk": {**OURS, **PHOTOGRAPHS},
    "cpfl: photographs, cropped": {**OURS, **PHOTOGRAPHS, "data.public_fit": "crop"},
    "cpfl: CIFAR-10 itself as public set": {**OURS, "data.public": "cifar10"},
    "cpfl: 4 views": FOUR,
    "cpfl: 4 views, batch 256": {**FOUR, "distillation.batch_size": 256},
    "cpfl: 4 views, 150 epochs": {**FOUR, "distillation.epochs": 150},
    "cpfl: 4 views, 150 epochs, not sharpened": {**FOUR, "distillation.epochs": 150, "distillation.sharpen": 0.0},
    "cpfl: 4 views, mirrored": {**FOUR, "distillation.mirrored": True},
    "cpfl: 4 views, 125 epochs, mirrored": {**FOUR, "distillation.epochs": 125, "distillation.mirrored": True},
    "cpfl: 8 views, 150 epochs": {**OURS, "distillation.views": 8, "distillation.epochs": 150},
    "cpfl: 8 views, mirrored": {**OURS, "distillation.views": 8, "distillation.mirrored": True},
}

Teach = Callable[..., None]
plain: Teach = teach


def held_back(outcome: Distilled) -> float:
    """Accuracy on what the clients held back, every sample counting alike."""
    clients = [client for client in outcome.client_accuracies if client["held_back"]]
    right = math.fsum(client["accuracy_held_back"] * client["held_back"] for client in clients)
    return right / float(sum(client["held_back"] for client in clients))


def from_the_best(study: Study) -> Teach:
    """Begin as the teacher that is best on what the clients held back."""

    def taught(student: nn.Module, *words: Any) -> None:
        student.load_state_dict(study.best_teacher())
        plain(student, *words)

    return taught


def averaged(study: Study) -> Teach:
    """The mean of the student's weights over the ends of its last epochs."""

    def taught(*words: Any) -> None:
        student, *others, accuracy, on_epoch = words
        ends: list[State] = []

        def looked_at(module: nn.Module) -> float:
            ends.append({name: value.detach().clone() for name, value in module.state_dict().items()})
            del ends[:-LATE]
            return float(accuracy(module))

        plain(student, *others, looked_at, on_epoch)
        student.load_state_dict(mean_of(ends))

    return taught


# Ways that are no settings: what they are tried with, and what stands in the place of teach.
OTHERS: dict[str, tuple[dict[str, Any], Callable[[Study], Teach]]] = {
    "cpfl: start at the best teacher": (OURS, from_the_best),
    "cpfl: weights averaged over the last 20 epochs": (OURS, averaged),
    "cpfl: constant rate 0.001, weights averaged over the last 20 epochs": (
        CHANGES["cpfl: constant rate 0.001"],
        averaged,
    ),
}


class Study:
    """A run's teachers, asked again and again."""

    def __init__(self, path: Path, data: Path, device: torch.device) -> None:
        self._folder, self._data, self._device = RunFolder.open(path), data, device
        self.experiment = self._folder.experiment()
        self._chosen = teachers.choose(self._folder, self.experiment.distillation)
        self._problems: dict[str, Problem] = {}

    def best_teacher(self) -> State:
        """By what the clients held back."""
        states = [load_state(path) for path in self._chosen.paths]
        problem = next(iter(self._problems.values()))
        worth = []
        for cohort, state in zip(self._chosen.cohorts, states, strict=True):
            alone = partial(iter, [state])
            found = distil(problem, alone, [cohort], Distillation(), self._device, lambda record: None)
            worth.append(held_back(found))
        return states[max(range(len(worth)), key=worth.__getitem__)]

    def named(self, name: str) -> dict[str, Any]:
        """A student by the change of this name."""
        if name in CHANGES:
            return self(CHANGES[name], plain)
        change, way = OTHERS[name]
        return self(change, way(self))

    def __call__(self, change: dict[str, Any], way: Teach) -> dict[str, Any]:
        """A student by these settings, taught in this way."""
        bare = self.experiment.model_copy(update={"distillation": Distillation()})  # whatever the run itself had
        experiment = experiment_file.with_settings(bare, change)
        key = experiment.data.model_dump_json()
        if key not in self._problems:
            self._problems = {key: prepare(experiment, [self._data], Given())}
        chosen, settings = self._chosen, experiment.distillation
        states = [load_state(path) for path in chosen.paths]
        problem, cohorts = self._problems[key], chosen.cohorts
        found = distil(problem, lambda: states, cohorts, settings, self._device, lambda record: None, teach=way)
        return {
            "validation": round(held_back(found), 2),
            "test": round(found.student_accuracy, 2),
            "best epoch": round(found.best_epoch_accuracy, 2),
            "ensemble": round(found.ensemble_accuracy, 2),
            "seconds": round(found.seconds, 1),
        }


def asked(doc: str, known: Sequence[str]) -> argparse.Namespace:
    """The words of the command; `only` are names of these, all of them if none are given."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(";"), default=known, help="names, by semicolons")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("runs", nargs="+", type=Path)
    words = parser.parse_args()
    for name in words.only:
        if name not in known:
            parser.error(f"nothing is called {name!r}; there are: {'; '.join(known)}")
    return words


def main() -> None:
    words = asked(__doc__, [*CHANGES, *OTHERS])
    for path in words.runs:
        study = Study(path, words.data, torch.device(words.device))
        experiment = study.experiment
        for name in words.only:
            about = {"run": kept.name_of(path), "n": experiment.cohorts, "seed": experiment.seed, "change": name}
            row = about | study.named(name)
            print(json.dumps(row), flush=True)
            kept.add(words.out, [row], ("run", "change", "card"))


if __name__ == "__main__":
    main()
