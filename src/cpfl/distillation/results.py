"""What is measured of teachers, ensemble and student: the objective's metric in per cent, by class and by client.

Names say accuracy, the metric of most objectives; `metric` says which it is.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.distillation.ensemble import Chunks, Ensemble, Precision, logits_of
from cpfl.distillation.objective import Probabilities, TeacherAggregation
from cpfl.distillation.student import EpochRecord
from cpfl.errors import CpflError
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
        self._task, self._precision, data, self._objective = task, precision, task.data, task.data.objective
        x = torch.as_tensor(data.test.x).to(precision.device)
        self._y = torch.as_tensor(data.test.y).to(precision.device)
        self._inputs = Chunks(len(x), lambda rows: data.transform(x[rows]), precision, "test")

    def accuracy(self, module: nn.Module) -> float:
        """A model's score."""
        return self._score(logits_of(module, self._inputs))

    def merged_accuracy(self, module: nn.Module, merged: State) -> dict[str, float]:
        """The score of the mean of the cohort models, for a summary; nothing where it has none: it may be no model."""
        module.load_state_dict(merged)
        score = self._objective.score(logits_of(module, self._inputs), self._y)
        return {"merged_accuracy": score} if math.isfinite(score) else {}

    def _score(self, answers: Tensor) -> float:
        """The objective's metric on the test set."""
        score = self._objective.score(answers, self._y)
        if not math.isfinite(score):
            raise CpflError(
                f"the {self._objective.metric} on the test set is {score}: lower federation.lr or distillation.lr"
            )
        return score

    def accuracies(self, ensemble: Ensemble, teachers: Iterable[State]) -> tuple[list[float], float]:
        """Each teacher's accuracy, and that of all of them together; the last teacher stays loaded."""
        each, total = list[float](), torch.zeros(())
        for logits_TC, term_TC in ensemble.terms(teachers, [self._inputs]):
            each.append(self._score(logits_TC))
            total = term_TC if len(each) == 1 else total + term_TC
        # The built-in ones keep the order of classes; normalizing may only round two of them to the same number.
        if type(ensemble.aggregation).targets not in (TeacherAggregation.targets, Probabilities.targets):
            total = ensemble.aggregation.targets(total)
        return each, self._score(ensemble.aggregation.answers(total))

    def results(
        self,
        student: nn.Module,
        teacher_accuracies: list[float],
        ensemble_accuracy: float,
        epochs: Sequence[EpochRecord],
        seconds: float,
        merged: Mapping[str, float] | None = None,  # what is known of the mean of the cohort models
    ) -> Distilled:
        """Everything that is measured of the global model."""
        answers, own = logits_of(student, self._inputs), self._objective
        by_class = own.scores_by_class(answers, self._y, self._task.data.classes)
        accuracy = self._score(answers)
        return Distilled(
            student={name: value.contiguous() for name, value in models.state_of(student).items()},
            accuracies={
                "metric": own.metric,
                "student_accuracy": accuracy,
                # Only for comparison with the paper, which reports it.
                "student_accuracy_best_epoch": max((epoch.accuracy for epoch in epochs), default=accuracy),
                "student_accuracy_per_class": by_class,  # None: a class that the test set lacks
                "teacher_accuracy_mean": statistics.fmean(teacher_accuracies),
                # The teachers of a run are all there are, no sample of more.
                "teacher_accuracy_std": statistics.pstdev(teacher_accuracies),
                "by_cohort": [{"accuracy": one} for one in teacher_accuracies],
                "ensemble_accuracy": ensemble_accuracy,
                **(merged or {}),
            },
            client_accuracies=self._by_client(student, by_class),
            seconds=seconds,
        )

    def _by_client(self, student: nn.Module, by_class: Sequence[float | None]) -> list[dict[str, Any]]:
        """The model's score for each client: on its validation samples, and expected from its mix of classes."""
        data = self._task.data
        assert data.train.y is not None
        held, owner = data.clients.held_out()
        x = torch.as_tensor(data.train.x[held]).to(self._precision.device)
        by_held: list[float | None] = [None] * len(data.clients)
        if len(held):
            inputs = Chunks(len(held), lambda rows: data.transform(x[rows]), self._precision)
            y = torch.as_tensor(data.train.y[held]).to(self._precision.device)
            by_held = self._objective.scores_by_group(logits_of(student, inputs), y, owner, len(data.clients))
        tested = np.array([a is not None for a in by_class])  # a class that the test set lacks says nothing
        known = np.array([0.0 if a is None else a for a in by_class])
        cohort_of = np.empty(len(data.clients), np.int64)
        for cohort, clients in enumerate(self._task.cohorts):
            cohort_of[clients] = cohort
        tested_labels = data.counts[:, tested].sum(axis=1) * self._objective.has_classes
        with np.errstate(invalid="ignore", divide="ignore"):
            by_labels = data.counts @ known / tested_labels
        return [
            {
                "client": client,
                "cohort": int(cohort_of[client]),
                "samples": int(data.clients.training_sizes[client]),
                "held_back": int(count),
                "accuracy_held_back": by_held[client],
                "accuracy_by_labels": float(by_labels[client]) if tested_labels[client] else None,
            }
            for client, count in enumerate(data.clients.validation_sizes)
        ]
