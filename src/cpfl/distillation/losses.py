"""The student's losses: how far its logits are from the targets."""

import torch
from torch import Tensor
from torch.nn import functional

from cpfl.settings import Distillation
from cpfl.settings.choices import DISTILLATION_LOSSES


class DistillationLoss:
    """Subclass it, write `__call__`, and name it "module:Class" in distillation.loss.

    Keyword arguments after the first two are distillation.loss_args. Axes: B samples of a batch, C classes.
    """

    def __init__(self, settings: Distillation, probabilities: bool) -> None:
        self.settings = settings
        self.probabilities = probabilities  # whether targets are probabilities; else they are logits

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """A scalar to minimise, the mean over the batch."""
        raise NotImplementedError

    def comparable(self, logits_BC: Tensor) -> Tensor:
        """The student's prediction in the form of the targets."""
        return torch.softmax(logits_BC / self.settings.temperature, dim=1) if self.probabilities else logits_BC


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

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        """The mean over the batch."""
        temperature = self.settings.temperature
        goal = targets_BC if self.probabilities else torch.softmax(targets_BC / temperature, dim=1)
        student = functional.log_softmax(logits_BC / temperature, dim=1)
        return functional.kl_div(student, goal, reduction="batchmean") * temperature**2


def distillation_loss(settings: Distillation, probabilities: bool) -> DistillationLoss:
    """The loss that the settings name."""
    return DISTILLATION_LOSSES.build(settings.loss, settings.loss_args, settings, probabilities)
