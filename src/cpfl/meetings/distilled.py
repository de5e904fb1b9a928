"""The meeting rule distill: cohorts continue from a student of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from cpfl import models
from cpfl.distillation.ensemble import Ensemble, Precision
from cpfl.distillation.objective import distillation_loss
from cpfl.distillation.student import initial_student, train_student
from cpfl.distillation.views import Views
from cpfl.meetings.rules import Contribution, MeetingRule, weighted_mean
from cpfl.models import State
from cpfl.registry import require
from cpfl.runs import files
from cpfl.settings.types import MOST

if TYPE_CHECKING:
    from cpfl.task.task import Task


class Distill(MeetingRule):
    """The ensemble of the cohort models is distilled on the public samples, as [distillation] says, and all cohorts
    begin anew from the student. So do the regions of F2L (Nguyen et al. 2022) and the groups of FedSDD (Kwan and
    Song 2023), from students of their models. Cohorts that train different models begin anew from a student of their
    own architecture, which itself begins from the mean of the models of that architecture.

    `epochs` are those of the student; 0: distillation.epochs.
    """

    def __init__(self, task: Task, device: torch.device, epochs: int = 0) -> None:
        super().__init__(task, device)
        require("epochs", epochs, 0 <= epochs <= MOST, f"0 or more, at most {MOST:,}")
        settings = task.experiment.distillation
        self.settings = settings.model_copy(update={"epochs": epochs or settings.epochs})

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """The student."""
        return self._student(contributions, 0)

    def merge_differing(self, contributions: Sequence[Contribution], number: int) -> dict[int, State]:
        """A student of each architecture."""
        found: dict[int, State] = {}
        for cohort in range(len(self.task.cohorts)):
            if cohort not in found:
                found |= dict.fromkeys(self.task.twins(cohort), self._student(contributions, cohort))
        return found

    def _student(self, contributions: Sequence[Contribution], cohort: int) -> State:
        """A student with the architecture of this cohort; it is never evaluated on test data here."""
        experiment, layout = self.task.experiment, self.task.layout(cohort)
        task = replace(self.task, build_student=self.task.for_cohort(cohort).build)
        models.choose_arithmetic(experiment.precision)
        precision = Precision(self.device, experiment.precision)
        teachers = [self.task.layout(one.cohort).received(one.model) for one in contributions]
        with models.threads_for(task.start):
            ensemble = Ensemble(task, [one.cohort for one in contributions], self.settings, precision)
            student = initial_student(task, ensemble, lambda: teachers, self.settings)
            if self.task.cohort_models and self.settings.student_init == "auto":
                twins = [teachers[one] for one in self.task.twins(cohort)]
                student.load_state_dict(weighted_mean(twins, [1.0] * len(twins)))
            views = Views(task, ensemble, lambda: teachers, self.settings, None)
            loss = distillation_loss(self.settings, ensemble.aggregation.probabilities, task.data.objective)
            unmeasured = (lambda module: 0.0), (lambda record: None)
            train_student(student, views, loss, self.settings, task, precision, *unmeasured)
        return files.on_host(layout.sent(models.state_of(student)))
