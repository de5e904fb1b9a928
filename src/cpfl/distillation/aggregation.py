"""Aggregation of teachers: what of each teacher is averaged, and what the average becomes."""

import torch
from torch import Tensor

from cpfl.settings import Distillation
from cpfl.settings.choices import TEACHER_AGGREGATIONS


class TeacherAggregation:
    """Subclass it, write `teacher_output`, and name it "module:Class" in distillation.aggregation.

    Targets are `targets(Σ_i p_i ⊙ teacher_output(z_i))`, summed teacher by teacher. Keyword arguments after `settings`
    are distillation.aggregation_args. Axes: T samples, C classes.
    """

    probabilities = False  # True: targets are probabilities, and the student's loss compares probabilities

    def __init__(self, settings: Distillation) -> None:
        self.settings = settings

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """What of a teacher enters the weighted sum, from its logits z_i."""
        raise NotImplementedError

    def targets(self, total_TC: Tensor) -> Tensor:
        """The targets z̃, from the weighted sum over all teachers."""
        return total_TC

    def log_probabilities(self, targets_TC: Tensor) -> Tensor:
        """What the targets predict."""
        if self.probabilities:
            return targets_TC.clamp_min(torch.finfo(targets_TC.dtype).tiny).log()
        return torch.log_softmax(targets_TC, dim=1)


class Logits(TeacherAggregation):
    """The paper: z̃ = Σ_i p_i ⊙ z_i."""

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """z_i as it is."""
        return logits_TC


class LogProbabilities(TeacherAggregation):
    """The authors' code, whose models end in a log-softmax."""

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """log softmax(z_i)."""
        return torch.log_softmax(logits_TC, dim=1)


class Probabilities(TeacherAggregation):
    """A weighted mean of the teachers' probabilities."""

    probabilities = True

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """softmax(z_i / T)."""
        return torch.softmax(logits_TC / self.settings.temperature, dim=1)

    def targets(self, total_TC: Tensor) -> Tensor:
        """Class weights leave sums that are not 1, which no softmax student could reach: normalized."""
        return total_TC / total_TC.sum(dim=1, keepdim=True)


def teacher_aggregation(settings: Distillation) -> TeacherAggregation:
    """The aggregation that the settings name."""
    return TEACHER_AGGREGATIONS.build(settings.aggregation, settings.aggregation_args, settings)
