"""Distillation, whole: teachers in, student and its measurements out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.data.transform import draw_plan
from cpfl.distillation.student import EpochRecord, teach
from cpfl.distillation.targets import contribution, joined, logits_of
from cpfl.distillation.weights import class_weights, cohort_counts
from cpfl.experiment import Distillation
from cpfl.models import State
from cpfl.problem import Problem
from cpfl.randomness import stream

Teachers = Callable[[], Iterable[State]]
"""The teachers' models, one after the other: never all in memory."""


@dataclass(frozen=True)
class Distilled:
    """A global model and what was measured of it and of its teachers, in per cent."""

    student: State
    teacher_accuracies: list[float]
    ensemble_accuracy: float
    student_accuracy: float
    best_epoch_accuracy: float  # for comparison with the paper only, which reports it
    class_accuracies: list[float | None]  # None: a class that the test set lacks
    client_accuracies: list[dict[str, Any]]
    seconds: float


def distil(
    problem: Problem,
    teachers: Teachers,
    cohorts: Sequence[int],
    settings: Distillation,
    device: torch.device,
    on_epoch: Callable[[EpochRecord], None],
) -> Distilled:
    """Teach a fresh student what the teachers of these cohorts know; a single teacher is the result itself."""
    began = time.perf_counter()
    data, seed = problem.data, problem.experiment.seed
    dtype = data.transform.dtype
    teacher = models.fresh(problem.build, seed, "init", dtype).to(device)
    weights_NC = class_weights(cohort_counts(data.counts, problem.plan), settings.weights, cohorts)
    x_test = torch.as_tensor(data.test.x).to(device)
    y_test = torch.as_tensor(data.test.y).to(device)

    def test_inputs(rows: slice) -> Tensor:
        return data.transform(x_test[rows])

    def accuracy(module: nn.Module) -> float:
        return per_cent(logits_of(module, len(x_test), test_inputs), y_test)

    teacher_accuracies, ensemble = [], torch.zeros(len(x_test), data.classes, dtype=dtype, device=device)
    for state, weight_C in zip(teachers(), weights_NC, strict=True):
        teacher.load_state_dict(state)
        logits_TC = logits_of(teacher, len(x_test), test_inputs)
        teacher_accuracies.append(per_cent(logits_TC, y_test))
        ensemble += contribution(logits_TC, settings) * torch.as_tensor(weight_C, dtype=dtype, device=device)

    seconds, epochs = 0.0, list[EpochRecord]()
    if len(cohorts) == 1:
        student = teacher  # as it was loaded last
    else:
        student = models.fresh(problem.build_student, seed, "student", dtype).to(device)
        views = _Views(problem, teacher, teachers, weights_NC, settings, device)

        def remember(record: EpochRecord) -> None:
            epochs.append(record)
            on_epoch(record)

        teach(student, settings, seed, len(data.public), views.batch, accuracy, remember)
        seconds = time.perf_counter() - began

    correct = logits_of(student, len(x_test), test_inputs).argmax(dim=1).eq(y_test).cpu().numpy()
    by_class = _by_class(correct, y_test.cpu().numpy(), data.classes)
    student_accuracy = 100 * float(correct.mean())
    return Distilled(
        student=models.state_of(student),
        teacher_accuracies=teacher_accuracies,
        ensemble_accuracy=per_cent(ensemble, y_test),
        student_accuracy=student_accuracy,
        best_epoch_accuracy=max((e.accuracy for e in epochs), default=student_accuracy),
        class_accuracies=by_class,
        client_accuracies=_by_client(problem, student, device, by_class),
        seconds=seconds,
    )


class _Views:
    """Public images as the student sees them, and the targets that belong to what it sees.

    paper:       targets once, on one view of each image; the student sees a new view in every epoch.
    consistent:  student and teachers see the same views, `views` of them in turn.
    """

    def __init__(
        self,
        problem: Problem,
        teacher: nn.Module,
        teachers: Teachers,
        weights_NC: NDArray[np.float64],
        settings: Distillation,
        device: torch.device,
    ) -> None:
        self._data, self._seed, self._settings, self._device = problem.data, problem.experiment.seed, settings, device
        self._teacher, self._teachers, self._weights = teacher, teachers, weights_NC
        self._x = torch.as_tensor(problem.data.public.x).to(device)
        self._targets: dict[int, Tensor] = {}
        self._plans: dict[int, Tensor | None] = {}

    def batch(self, epoch: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The student's inputs and targets for these rows in this epoch."""
        if self._settings.recipe == "paper":
            seen, labelled = epoch + 1, 0
        else:
            seen = labelled = epoch % self._settings.views
        plan = self._plan(seen)
        inputs = self._data.public_transform(self._x[rows], None if plan is None else plan[rows])
        return inputs, self._target(labelled)[rows]

    def _plan(self, view: int) -> Tensor | None:
        if not self._data.augmented:
            return None
        if view not in self._plans:
            if self._settings.recipe == "paper":
                self._plans.clear()  # a view is seen in one epoch only
            plan = draw_plan(stream(self._seed, "view", view), len(self._x), self._data.train.shape)
            self._plans[view] = torch.from_numpy(plan).to(self._device)
        return self._plans[view]

    def _target(self, view: int) -> Tensor:
        if view not in self._targets:
            plan = self._plan(view)

            def inputs(rows: slice) -> Tensor:
                return self._data.public_transform(self._x[rows], None if plan is None else plan[rows])

            count, settings = len(self._x), self._settings
            self._targets[view] = joined(self._teacher, self._teachers(), self._weights, count, inputs, settings)
        return self._targets[view]


def per_cent(scores_TC: Tensor, y_T: Tensor) -> float:
    """Accuracy of the highest score."""
    return 100 * scores_TC.argmax(dim=1).eq(y_T).double().mean().item()


def _by_class(correct: NDArray[np.bool_], y: NDArray[np.int64], classes: int) -> list[float | None]:
    held = np.bincount(y, minlength=classes)
    right = np.bincount(y, weights=correct, minlength=classes)
    return [100 * float(r / h) if h else None for r, h in zip(right, held, strict=True)]


def _by_client(
    problem: Problem, student: nn.Module, device: torch.device, by_class: Sequence[float | None]
) -> list[dict[str, Any]]:
    """What the global model is worth to each client: on the samples it held back, and by its mix of labels."""
    data = problem.data
    assert data.train.y is not None
    held = np.concatenate([c.validation for c in data.clients])
    x = torch.as_tensor(data.train.x[held]).to(device)
    right = np.zeros(0, np.bool_)
    if len(held):
        answers = logits_of(student, len(held), lambda rows: data.transform(x[rows])).argmax(dim=1).cpu().numpy()
        right = answers == data.train.y[held]
    owner = np.repeat(np.arange(len(data.clients)), [len(c.validation) for c in data.clients])
    tested = np.array([a is not None for a in by_class])  # a class that the test set lacks says nothing
    known = np.array([0.0 if a is None else a for a in by_class])
    cohort_of = {client: i for i, clients in enumerate(problem.plan) for client in clients}
    rows = []
    for client, labels in enumerate(data.counts):
        own = right[owner == client]
        rows.append(
            {
                "client": client,
                "cohort": cohort_of[client],
                "samples": int(labels.sum()),
                "held_back": len(own),
                "accuracy_held_back": 100 * float(own.mean()) if len(own) else None,
                "accuracy_by_labels": float(known @ labels / labels[tested].sum()) if labels[tested].any() else None,
            }
        )
    return rows
