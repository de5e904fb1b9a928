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
from cpfl.meetings.rules import Contribution, MeetingRule
from cpfl.models import State
from cpfl.registry import require
from cpfl.runs import files
from cpfl.settings.types import MOST

if TYPE_CHECKING:
    from cpfl.task.task import Task


class Distill(MeetingRule):
    """The ensemble of the cohort models is distilled on the public samples, as [distillation] says, and all cohorts
    begin anew from the student. So do the regions of F2L (Nguyen et al. 2022) and the groups of FedSDD (Kwan and
    Song 2023), from students of their models.

    `epochs` are those of the student; 0: distillation.epochs.
    """

    def __init__(self, task: Task, device: torch.device, epochs: int = 0) -> None:
        super().__init__(task, device)
        require("epochs", epochs, 0 <= epochs <= MOST, f"0 or more, at most {MOST:,}")
        settings = task.experiment.distillation
        self.settings = settings.model_copy(update={"epochs": epochs or settings.epochs})

    def merge(self, contributions: Sequence[Contribution], start: State, number: int) -> State:
        """The student; it is never evaluated on test data here."""
        experiment, layout = self.task.experiment, self.task.layout()
        task = replace(self.task, build_student=self.task.build)
        models.choose_arithmetic(experiment.precision)
        precision = Precision(self.device, experiment.precision)
        teachers = [layout.received(one.model) for one in contributions]
        with models.threads_for(task.start):
            ensemble = Ensemble(task, [one.cohort for one in contributions], self.settings, precision)
            student = initial_student(task, ensemble, lambda: teachers, self.settings)
            views = Views(task, ensemble, lambda: teachers, self.settings, None)
            loss = distillation_loss(self.settings, ensemble.aggregation.probabilities, task.data.objective)
            unmeasured = (lambda module: 0.0), (lambda record: None)
            train_student(student, views, loss, self.settings, task, precision, *unmeasured)
        return files.on_host(layout.sent(models.state_of(student)))
