"""The distillation objective: teacher weights p_i, what is aggregated of the teachers, and the student's loss.

Each of the three is a base class with built-in subclasses; settings name them, and a user can write another one.
Axes: N cohorts, T samples, B samples of a batch, C classes (or other outputs of the objective, always the last axis).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cpfl.errors import SettingError
from cpfl.objectives.base import Objective
from cpfl.objectives.links import SOFTMAX, Link
from cpfl.privacy.label_counts import HIDDEN
from cpfl.registry import Registry
from cpfl.settings import Distillation
from cpfl.settings.choices import DISTILLATION_LOSSES, TEACHER_AGGREGATIONS, TEACHER_WEIGHTS


class TeacherWeights:
    """Subclass it, write `weights`, and name it "module:Class" in distillation.weights.

    Keyword arguments of the constructor are distillation.weights_args.
    """

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """p[i, c], the weight of teacher i for class c; every column sums to 1.

        Parameters
        ----------
        counts_NC
            Training labels of each cohort by class.
        known_N
            Which cohorts reported their label counts; the others' rows mean nothing.
        """
        raise NotImplementedError


class Uniform(TeacherWeights):
    """1/n for every teacher."""

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """1/n."""
        return np.full_like(counts_NC, 1 / len(counts_NC))


class Labels(Uniform):
    """A cohort's share of each class's labels, as in the paper.

    A cohort whose counts are hidden gets 1/n of every class, the others share the rest; a class nobody holds: 1/n each.
    """

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """n[i, c] / Σ_j n[j, c]."""
        uniform, known = super().weights(counts_NC, known_N), known_N[:, None]
        total = np.where(known, counts_NC, 0).sum(axis=0)
        shares = counts_NC / np.maximum(total, 1) * known_N.mean()
        return np.where(known & (total > 0), shares, uniform)


def teacher_weights(
    settings: Distillation, counts_NC: NDArray[np.int64], cohorts: Sequence[int]
) -> NDArray[np.float64]:
    """The weights p of these cohorts' models, (N, C); an objective makes of them those of its outputs."""
    rule = TEACHER_WEIGHTS.build(settings.weights, settings.weights_args)
    counts = counts_NC[list(cohorts)].astype(np.float64)
    found = np.asarray(rule.weights(counts, counts[:, 0] != HIDDEN), np.float64)
    if found.shape != counts.shape or not np.allclose(found.sum(axis=0), 1):
        raise SettingError(
            f"distillation.weights = {settings.weights!r} must return an array of shape {counts.shape} whose columns "
            "sum to 1"
        )
    return found


class TeacherAggregation:
    """Subclass it, write `teacher_output`, and name it "module:Class" in distillation.aggregation.

    Targets are `targets(Σ_i p_i ⊙ teacher_output(z_i))`, summed teacher by teacher. Keyword arguments after `settings`
    are distillation.aggregation_args.
    """

    probabilities = False  # True: targets are probabilities, and the student's loss compares probabilities
    links: tuple[str, ...] = ("softmax", "sigmoid", "numbers")  # of objectives for which it is defined
    link: Link = SOFTMAX  # of the run's objective

    def __init__(self, settings: Distillation) -> None:
        self.settings = settings

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """What of a teacher enters the weighted sum, from its logits (or other answers) z_i."""
        raise NotImplementedError

    def targets(self, total_TC: Tensor) -> Tensor:
        """The targets z̃, from the weighted sum over all teachers."""
        return total_TC

    def answers(self, targets_TC: Tensor) -> Tensor:
        """Targets in the form of a model's answers, for the objective's score."""
        return self.link.answers(targets_TC) if self.probabilities else targets_TC


class Logits(TeacherAggregation):
    """The paper: z̃ = Σ_i p_i ⊙ z_i."""

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """z_i as it is."""
        return logits_TC


class LogProbabilities(TeacherAggregation):
    """The authors' code, whose models end in a log-softmax."""

    links = ("softmax",)

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """log softmax(z_i)."""
        return torch.log_softmax(logits_TC, dim=-1)


class Probabilities(TeacherAggregation):
    """A weighted mean of the teachers' probabilities."""

    probabilities = True
    links = ("softmax", "sigmoid")

    def teacher_output(self, logits_TC: Tensor) -> Tensor:
        """softmax(z_i / T), or the sigmoid."""
        return self.link.probabilities(logits_TC, self.settings.temperature)

    def targets(self, total_TC: Tensor) -> Tensor:
        """Probabilities again."""
        return self.link.normalized(total_TC)


def teacher_aggregation(settings: Distillation, objective: Objective) -> TeacherAggregation:
    """The aggregation that the settings name."""
    found = TEACHER_AGGREGATIONS.build(settings.aggregation, settings.aggregation_args, settings)
    _check_link(TEACHER_AGGREGATIONS, settings.aggregation, found.links, objective)
    found.link = objective.link
    return found


def _check_link(registry: Registry[Any], name: str, links: Sequence[str], objective: Objective) -> None:
    """Refuse what is not defined for the answers of an objective."""
    if objective.link.name not in links:
        allowed = ", ".join(other for other in registry.names if objective.link.name in registry.find(other).links)
        raise SettingError(
            f"{registry.key} = {name!r} is not defined for the answers of the objective {type(objective).__name__} "
            f"({objective.answer}); allowed here: {allowed}"
        )


class DistillationLoss:
    """Subclass it, write `__call__`, and name it "module:Class" in distillation.loss.

    Keyword arguments after the first two are distillation.loss_args.
    """

    links: tuple[str, ...] = ("softmax", "sigmoid", "numbers")  # of objectives for which it is defined
    link: Link = SOFTMAX  # of the run's objective

    def __init__(self, settings: Distillation, probabilities: bool) -> None:
        self.settings = settings
        self.probabilities = probabilities  # whether targets are probabilities; else they are logits

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """A scalar to minimise, the mean over the batch."""
        raise NotImplementedError

    def comparable(self, logits_BC: Tensor) -> Tensor:
        """The student's prediction in the form of the targets."""
        return self.link.probabilities(logits_BC, self.settings.temperature) if self.probabilities else logits_BC


class L1(DistillationLoss):
    """The paper: ‖f(x; θ_s) − z̃‖₁, here the mean over batch and classes."""

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """Mean absolute difference."""
        return functional.l1_loss(self.comparable(logits_BC), targets_BC)


class MSE(DistillationLoss):
    """Mean squared difference over batch and classes."""

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """Mean squared difference."""
        return functional.mse_loss(self.comparable(logits_BC), targets_BC)


class KL(DistillationLoss):
    """Hinton et al. 2015: T² · KL(targets ‖ student), both at temperature T."""

    links = ("softmax", "sigmoid")

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """The mean over the batch."""
        temperature = self.settings.temperature
        goal = targets_BC if self.probabilities else self.link.probabilities(targets_BC, temperature)
        return self.link.kl(logits_BC / temperature, goal) * temperature**2


def distillation_loss(settings: Distillation, probabilities: bool, objective: Objective) -> DistillationLoss:
    """The loss that the settings name."""
    found = DISTILLATION_LOSSES.build(settings.loss, settings.loss_args, settings, probabilities)
    _check_link(DISTILLATION_LOSSES, settings.loss, found.links, objective)
    found.link = objective.link
    return found
