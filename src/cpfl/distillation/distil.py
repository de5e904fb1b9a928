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
from cpfl.distillation.shards import Helpers, Labelling, Shards
from cpfl.distillation.student import EpochRecord, teach
from cpfl.distillation.targets import Chunks, Numbers, Teachers, contribution, logits_of, placed, teacher_modules
from cpfl.distillation.views import Views
from cpfl.distillation.weights import class_weights
from cpfl.experiment import Distillation
from cpfl.models import State
from cpfl.problem import Problem


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
    helpers: Helpers | None = None,  # who make the targets, in shards of the public set
    teach: Callable[..., None] = teach,  # how the student learns; a study may try another way
) -> Distilled:
    """Teach a student what the teachers of these cohorts know; a single teacher is the result itself."""
    began = time.perf_counter()
    data, seed = problem.data, problem.experiment.seed
    dtype = data.transform.dtype
    models.choose_arithmetic(problem.experiment.precision)
    numbers = Numbers(device, problem.experiment.precision)
    modules = teacher_modules(problem, cohorts, numbers)
    weights_NC = class_weights(problem.label_counts, settings.weights, cohorts)
    x_test = torch.as_tensor(data.test.x).to(device)
    y_test = torch.as_tensor(data.test.y).to(device)

    test_inputs = Chunks(len(x_test), lambda rows: data.transform(x_test[rows]), numbers)

    def accuracy(module: nn.Module) -> float:
        return per_cent(logits_of(module, test_inputs), y_test)

    teacher_accuracies, ensemble = [], torch.zeros(len(x_test), data.classes, dtype=dtype, device=device)
    for teacher, state, weight_C in zip(modules, teachers(), weights_NC, strict=True):
        teacher.load_state_dict(state)
        logits_TC = logits_of(teacher, test_inputs)
        teacher_accuracies.append(per_cent(logits_TC, y_test))
        ensemble += contribution(logits_TC, settings) * torch.as_tensor(weight_C, dtype=dtype, device=device)

    seconds, epochs = 0.0, list[EpochRecord]()
    if len(cohorts) == 1:
        student = modules[0]  # as it was loaded last
    else:
        student = models.fresh(problem.build_student, seed, "student", dtype)
        if settings.start == "mean" or (settings.start == "auto" and all(same_form(student, m) for m in modules)):
            student.load_state_dict(mean_of(teachers()))
        student = placed(student, problem, numbers)
        labelling = Labelling(cohorts, weights_NC, settings)
        shards = None if helpers is None else Shards(helpers, labelling, teachers())
        views = Views(problem, modules, teachers, weights_NC, settings, numbers, shards)

        def remember(record: EpochRecord) -> None:
            epochs.append(record)
            on_epoch(record)

        teach(student, settings, numbers, seed, len(data.public), views, accuracy, remember)
        seconds = time.perf_counter() - began

    correct = logits_of(student, test_inputs).argmax(dim=1).eq(y_test).cpu().numpy()
    by_class = _by_class(correct, y_test.cpu().numpy(), data.classes)
    student_accuracy = 100 * float(correct.mean())
    return Distilled(
        student={name: value.contiguous() for name, value in models.state_of(student).items()},
        teacher_accuracies=teacher_accuracies,
        ensemble_accuracy=per_cent(ensemble, y_test),
        student_accuracy=student_accuracy,
        best_epoch_accuracy=max((e.accuracy for e in epochs), default=student_accuracy),
        class_accuracies=by_class,
        client_accuracies=_by_client(problem, student, numbers, by_class),
        seconds=seconds,
    )


def mean_of(states: Iterable[State]) -> State:
    """The mean of models of one form; whole numbers, which counters are, stay the first one's."""
    total: State = {}
    for count, state in enumerate(states, start=1):
        for name, value in state.items():
            if count == 1:
                total[name] = value.clone()
            elif value.is_floating_point():
                total[name] += (value - total[name]) / count
    return total


def same_form(student: nn.Module, teacher: nn.Module) -> bool:
    """Whether one could have the other's weights."""
    shapes = [{name: value.shape for name, value in module.state_dict().items()} for module in (student, teacher)]
    return shapes[0] == shapes[1]


def per_cent(scores_TC: Tensor, y_T: Tensor) -> float:
    """Accuracy of the highest score."""
    return 100 * scores_TC.argmax(dim=1).eq(y_T).double().mean().item()


def _by_class(correct: NDArray[np.bool_], y: NDArray[np.int64], classes: int) -> list[float | None]:
    held = np.bincount(y, minlength=classes)
    right = np.bincount(y, weights=correct, minlength=classes)
    return [100 * float(r / h) if h else None for r, h in zip(right, held, strict=True)]


def _by_client(
    problem: Problem, student: nn.Module, numbers: Numbers, by_class: Sequence[float | None]
) -> list[dict[str, Any]]:
    """What the global model is worth to each client: on the samples it held back, and by its mix of labels."""
    data = problem.data
    assert data.train.y is not None
    held, owner = data.clients.held_out()
    x = torch.as_tensor(data.train.x[held]).to(numbers.device)
    right = np.zeros(len(held))
    if len(held):
        inputs = Chunks(len(held), lambda rows: data.transform(x[rows]), numbers)
        answers = logits_of(student, inputs).argmax(dim=1).cpu().numpy()
        right = (answers == data.train.y[held]).astype(np.float64)
    tested = np.array([a is not None for a in by_class])  # a class that the test set lacks says nothing
    known = np.array([0.0 if a is None else a for a in by_class])
    cohort_of = np.empty(len(data.clients), np.int64)
    for cohort, clients in enumerate(problem.plan):
        cohort_of[clients] = cohort
    judged = data.counts[:, tested].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_held = 100 * np.bincount(owner, right, len(data.clients)) / data.clients.validation_sizes
        by_labels = data.counts @ known / judged
    return [
        {
            "client": client,
            "cohort": int(cohort_of[client]),
            "samples": int(data.counts[client].sum()),
            "held_back": int(count),
            "accuracy_held_back": float(by_held[client]) if count else None,
            "accuracy_by_labels": float(by_labels[client]) if judged[client] else None,
        }
        for client, count in enumerate(data.clients.validation_sizes)
    ]
