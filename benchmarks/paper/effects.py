"""What does each part of a recipe do to the student? One change at a time, on the same teachers of finished runs.

The accuracy on the clients' validation samples decides; the accuracy on the test set is for the reader alone.

    python benchmarks/paper/effects.py --data DIR --out results/paper/effects.json [--only "NAME;NAME"] RUN...
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import tables
import torch
from torch import nn

from cpfl import method
from cpfl.data.given import Given
from cpfl.distillation.results import Distilled
from cpfl.distillation.student import EpochRecord, train_student
from cpfl.models import State
from cpfl.models.layout import RunningMean
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import select_teachers
from cpfl.settings import Distillation, experiment_file
from cpfl.task.task import Task, build_task

PAPER: dict[str, Any] = {"distillation.recipe": "paper"}
SAME = {**PAPER, "distillation.same_views": True}
OURS: dict[str, Any] = {"distillation.recipe": "cpfl"}
LAST = 20  # epochs
HALF = {"data.public_limit": 20_000}  # as many images as there are photographs
PHOTOGRAPHS = {"data.public": "photographs", "data.public_fit": "resize"}  # made by photographs.py
FOUR = {**OURS, "distillation.views": 4}
CHANGES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "paper: log-probabilities": {**PAPER, "distillation.aggregation": "log-probabilities"},
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
    "same view: probabilities, kl": {**SAME, "distillation.aggregation": "probabilities", "distillation.loss": "kl"},
    "cpfl": OURS,
    "cpfl: not sharpened": {**OURS, "distillation.target_entropy": 0.0},
    "cpfl: sharpened to 0.4": {**OURS, "distillation.target_entropy": 0.4},
    "cpfl: uniform weights": {**OURS, "distillation.weights": "uniform"},
    "cpfl: fresh start": {**OURS, "distillation.student_init": "fresh"},
    "cpfl: no squares of others": {**OURS, "distillation.augment": "crop-flip"},
    "cpfl: a new view each epoch": {**OURS, "distillation.same_views": False},
    "cpfl: one view": {**OURS, "distillation.views": 1},
    "cpfl: 2 views": {**OURS, "distillation.views": 2},
    "cpfl: 50 epochs": {**OURS, "distillation.epochs": 50},
    "cpfl: 150 epochs": {**OURS, "distillation.epochs": 150},
    "cpfl: temperature 2": {**OURS, "distillation.temperature": 2.0},
    "cpfl: mse": {**OURS, "distillation.loss": "mse"},
    "cpfl: rate 0.008": {**OURS, "distillation.lr": 0.008},
    "cpfl: constant rate 0.001": {**OURS, "distillation.lr_schedule": "constant", "distillation.lr": 0.001},
    "cpfl: logits, mse": {**OURS, "distillation.aggregation": "logits", "distillation.loss": "mse"},
    "cpfl: 20,000 public images": {**OURS, **HALF},
    "cpfl: photographs, shrunk": {**OURS, **PHOTOGRAPHS},
    "cpfl: photographs, cropped": {**OURS, **PHOTOGRAPHS, "data.public_fit": "crop"},
    "cpfl: CIFAR-10 itself as public set": {**OURS, "data.public": "cifar10"},
    "cpfl: 4 views": FOUR,
    "cpfl: 4 views, batch 256": {**FOUR, "distillation.batch_size": 256},
    "cpfl: 4 views, 150 epochs": {**FOUR, "distillation.epochs": 150},
    "cpfl: 4 views, 150 epochs, not sharpened": {
        **FOUR, "distillation.epochs": 150, "distillation.target_entropy": 0.0,
    },
    "cpfl: 4 views, flip average": {**FOUR, "distillation.flip_average": True},
    "cpfl: 4 views, 125 epochs, flip average": {**FOUR, "distillation.epochs": 125, "distillation.flip_average": True},
    "cpfl: 8 views, 150 epochs": {**OURS, "distillation.views": 8, "distillation.epochs": 150},
    "cpfl: 8 views, flip average": {**OURS, "distillation.views": 8, "distillation.flip_average": True},
}  # fmt: skip

Train = Callable[..., list[EpochRecord]]
plain: Train = train_student


def validation_accuracy(outcome: Distilled) -> float:
    """Accuracy on the clients' validation samples, every sample with the same weight."""
    clients = [client for client in outcome.client_accuracies if client["held_back"]]
    right = math.fsum(client["accuracy_held_back"] * client["held_back"] for client in clients)
    return right / float(sum(client["held_back"] for client in clients))


def from_the_best(redistill: Redistillation) -> Train:
    """Start from the teacher that is best on the clients' validation samples."""

    def train(student: nn.Module, *others: Any) -> list[EpochRecord]:
        student.load_state_dict(redistill.best_teacher())
        return plain(student, *others)

    return train


def averaged(redistill: Redistillation) -> Train:
    """The mean of the student's weights over the ends of its last epochs."""

    def train(student: nn.Module, *others: Any) -> list[EpochRecord]:
        *others_before, accuracy, on_epoch, pause = others
        ends: list[State] = []

        def recorded(module: nn.Module) -> float:
            ends.append({name: value.detach().clone() for name, value in module.state_dict().items()})
            del ends[:-LAST]
            return float(accuracy(module))

        epochs = plain(student, *others_before, recorded, on_epoch, pause)
        mean = RunningMean()
        for state in ends:
            mean.add(state, 1.0)
        student.load_state_dict(mean.result())
        return epochs

    return train


# Changes that are not settings: the settings they are tried with, and the function that replaces train_student.
OTHERS: dict[str, tuple[dict[str, Any], Callable[[Redistillation], Train]]] = {
    "cpfl: start at the best teacher": (OURS, from_the_best),
    "cpfl: weights averaged over the last 20 epochs": (OURS, averaged),
    "cpfl: constant rate 0.001, weights averaged over the last 20 epochs": (
        CHANGES["cpfl: constant rate 0.001"],
        averaged,
    ),
}


class Redistillation:
    """Distills the teachers of a finished run again and again."""

    def __init__(self, path: Path, data: Path, device: torch.device) -> None:
        self._folder, self._data, self._device = RunFolder.open(path), data, device
        self.experiment = self._folder.experiment()
        chosen = select_teachers(self._folder, self.experiment.distillation)
        self._teachers = replace(chosen, sources=list(chosen.states()))  # in memory
        self._tasks: dict[str, Task] = {}

    def best_teacher(self) -> State:
        """The best on the clients' validation samples."""
        states, accuracies = list(self._teachers.states()), list[float]()
        task = next(iter(self._tasks.values()))
        for cohort, state in zip(self._teachers.cohorts, states, strict=True):
            single = replace(self._teachers, cohorts=[cohort], sources=[state])
            found = method.distill(task, single, Distillation(), self._device, lambda record: None)
            accuracies.append(validation_accuracy(found))
        return states[max(range(len(states)), key=accuracies.__getitem__)]

    def named(self, name: str) -> dict[str, Any]:
        """The results of a student with the change of this name."""
        if name in CHANGES:
            return self(CHANGES[name], plain)
        change, train = OTHERS[name]
        return self(change, train(self))

    def __call__(self, change: dict[str, Any], train: Train) -> dict[str, Any]:
        """The results of a student with these settings, trained by this function."""
        bare = self.experiment.model_copy(update={"distillation": Distillation()})  # whatever the run itself had
        experiment = experiment_file.with_settings(bare, change)
        key = experiment.data.model_dump_json()
        if key not in self._tasks:
            self._tasks = {key: build_task(experiment, [self._data], Given())}
        task, settings = self._tasks[key], experiment.distillation
        with mock.patch.object(method, "train_student", train):
            found = method.distill(task, self._teachers, settings, self._device, lambda record: None)
        return {
            "validation": round(validation_accuracy(found), 2),
            "test": round(found.accuracies["student_accuracy"], 2),
            "best epoch": round(found.accuracies["student_accuracy_best_epoch"], 2),
            "ensemble": round(found.accuracies["ensemble_accuracy"], 2),
            "seconds": round(found.seconds, 1),
        }


def parsed(doc: str, known: Sequence[str]) -> argparse.Namespace:
    """The command line; `only` holds some of these names, all of them if none are given."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--only", type=lambda text: text.split(";"), default=known, help="names, separated by semicolons"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("runs", nargs="+", type=Path)
    words = parser.parse_args()
    for name in words.only:
        if name not in known:
            parser.error(f"unknown name {name!r}; known: {'; '.join(known)}")
    return words


def main() -> None:
    words = parsed(__doc__, [*CHANGES, *OTHERS])
    for path in words.runs:
        redistill = Redistillation(path, words.data, torch.device(words.device))
        experiment = redistill.experiment
        for name in words.only:
            about = {"run": tables.name_of(path), "n": experiment.cohorts, "seed": experiment.seed, "change": name}
            row = about | redistill.named(name)
            print(json.dumps(row), flush=True)
            tables.add(words.out, [row], ("run", "change", "gpu"))


if __name__ == "__main__":
    main()
