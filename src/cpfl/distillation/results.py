"""What is measured of teachers, ensemble and student: accuracies in per cent, by class and by client."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.distillation.ensemble import Chunks, Ensemble, Precision, logits_of
from cpfl.distillation.objective import Probabilities, TeacherAggregation
from cpfl.distillation.student import EpochRecord
from cpfl.models import State
from cpfl.task.task import Task


@dataclass(frozen=True)
class Distilled:
    """A global model and what was measured of it and of its teachers, in per cent."""

    student: State
    accuracies: dict[str, Any]  # entries of the run's summary
    client_accuracies: list[dict[str, Any]]
    seconds: float  # of the distillation; 0 for a single teacher


class TestSet:
    """The test samples on the device, and what models and ensembles score on them."""

    __test__ = False  # no test class of pytest's

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision, data = task, precision, task.data
        x = torch.as_tensor(data.test.x).to(precision.device)
        self._y = torch.as_tensor(data.test.y).to(precision.device)
        self._inputs = Chunks(len(x), lambda rows: data.transform(x[rows]), precision)

    def accuracy(self, module: nn.Module) -> float:
        """A model's accuracy."""
        return per_cent(logits_of(module, self._inputs), self._y)

    def accuracies(self, ensemble: Ensemble, teachers: Iterable[State]) -> tuple[list[float], float]:
        """Each teacher's accuracy, and that of all of them together; the last teacher stays loaded."""
        each, total = list[float](), torch.zeros(())
        for logits_TC, term_TC in ensemble.terms(teachers, [self._inputs]):
            each.append(per_cent(logits_TC, self._y))
            total = term_TC if len(each) == 1 else total + term_TC
        # The built-in ones keep the order of classes; normalizing may only round two of them to the same number.
        if type(ensemble.aggregation).targets not in (TeacherAggregation.targets, Probabilities.targets):
            total = ensemble.aggregation.targets(total)
        return each, per_cent(total, self._y)

    def results(
        self,
        student: nn.Module,
        teacher_accuracies: list[float],
        ensemble_accuracy: float,
        epochs: Sequence[EpochRecord],
        seconds: float,
    ) -> Distilled:
        """Everything that is measured of the global model."""
        correct = logits_of(student, self._inputs).argmax(dim=1).eq(self._y).cpu().numpy()
        y, classes = self._y.cpu().numpy(), self._task.data.classes
        held, right = np.bincount(y, minlength=classes), np.bincount(y, weights=correct, minlength=classes)
        by_class = [100 * float(r / h) if h else None for r, h in zip(right, held, strict=True)]
        accuracy = 100 * float(correct.mean())
        return Distilled(
            student={name: value.contiguous() for name, value in models.state_of(student).items()},
            accuracies={
                "student_accuracy": accuracy,
                # Only for comparison with the paper, which reports it.
                "student_accuracy_best_epoch": max((epoch.accuracy for epoch in epochs), default=accuracy),
                "student_accuracy_per_class": by_class,  # None: a class that the test set lacks
                "teacher_accuracy_mean": statistics.fmean(teacher_accuracies),
                "teacher_accuracy_std": statistics.pstdev(teacher_accuracies),
                "by_cohort": [{"accuracy": one} for one in teacher_accuracies],
                "ensemble_accuracy": ensemble_accuracy,
            },
            client_accuracies=self._by_client(student, by_class),
            seconds=seconds,
        )

    def _by_client(self, student: nn.Module, by_class: Sequence[float | None]) -> list[dict[str, Any]]:
        """The model's accuracy for each client: on its validation samples, and expected from its mix of labels."""
        data = self._task.data
        assert data.train.y is not None
        held, owner = data.clients.held_out()
        x = torch.as_tensor(data.train.x[held]).to(self._precision.device)
        right = np.zeros(len(held))
        if len(held):
            inputs = Chunks(len(held), lambda rows: data.transform(x[rows]), self._precision)
            answers = logits_of(student, inputs).argmax(dim=1).cpu().numpy()
            right = (answers == data.train.y[held]).astype(np.float64)
        tested = np.array([a is not None for a in by_class])  # a class that the test set lacks says nothing
        known = np.array([0.0 if a is None else a for a in by_class])
        cohort_of = np.empty(len(data.clients), np.int64)
        for cohort, clients in enumerate(self._task.cohorts):
            cohort_of[clients] = cohort
        tested_labels = data.counts[:, tested].sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            by_held = 100 * np.bincount(owner, right, len(data.clients)) / data.clients.validation_sizes
            by_labels = data.counts @ known / tested_labels
        return [
            {
                "client": client,
                "cohort": int(cohort_of[client]),
                "samples": int(data.counts[client].sum()),
                "held_back": int(count),
                "accuracy_held_back": float(by_held[client]) if count else None,
                "accuracy_by_labels": float(by_labels[client]) if tested_labels[client] else None,
            }
            for client, count in enumerate(data.clients.validation_sizes)
        ]


def per_cent(scores_TC: Tensor, y_T: Tensor) -> float:
    """Accuracy of the highest score."""
    return 100 * scores_TC.argmax(dim=1).eq(y_T).double().mean().item()
