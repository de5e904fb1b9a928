"""How a model's answer becomes probabilities, over the last axis: what the distillation needs to know of an objective.

A class has no state. `q` are probabilities, `z` a model's answers, `T` a temperature.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

BISECTIONS = 12  # to a thousandth


class Link:
    """Answers that are no logits: predicted numbers, of which there are no probabilities."""

    name: ClassVar[str] = "numbers"
    has_probabilities: ClassVar[bool] = False

    def probabilities(self, z: Tensor, temperature: float = 1.0) -> Tensor:
        """What answers say, at a temperature."""
        raise NotImplementedError

    def normalized(self, total: Tensor) -> Tensor:
        """Probabilities from a sum of probabilities whose weights differ by class."""
        raise NotImplementedError

    def answers(self, q: Tensor) -> Tensor:
        """Something with the same prediction as these probabilities, as an objective's score takes it."""
        raise NotImplementedError

    def sharpened(self, q: Tensor, temperature: float) -> Tensor:
        """The same order of classes, surer of the first with a temperature below 1."""
        raise NotImplementedError

    def entropy(self, q: Tensor) -> float:
        """The mean entropy of the distributions."""
        raise NotImplementedError

    def most_entropy(self, q: Tensor) -> float:
        """The entropy of a distribution that knows nothing."""
        raise NotImplementedError

    def kl(self, z: Tensor, q: Tensor) -> Tensor:
        """KL(q ‖ what z says), the mean over distributions."""
        raise NotImplementedError


class Softmax(Link):
    """One of C classes, from C logits."""

    name = "softmax"
    has_probabilities = True

    def probabilities(self, z: Tensor, temperature: float = 1.0) -> Tensor:
        """softmax(z / T)."""
        return torch.softmax(z / temperature, dim=-1)

    def normalized(self, total: Tensor) -> Tensor:
        """Class weights leave sums that are not 1, which no softmax student could reach."""
        return total / total.sum(dim=-1, keepdim=True)

    def answers(self, q: Tensor) -> Tensor:
        """The probabilities themselves: the highest one is the prediction."""
        return q

    def sharpened(self, q: Tensor, temperature: float) -> Tensor:
        """softmax(log q / T)."""
        return torch.softmax(log(q) / temperature, dim=-1)

    def entropy(self, q: Tensor) -> float:
        """Of the classes."""
        return -torch.xlogy(q, q).sum(dim=-1).mean().item()

    def most_entropy(self, q: Tensor) -> float:
        """Of C equal probabilities."""
        return math.log(q.shape[-1])

    def kl(self, z: Tensor, q: Tensor) -> Tensor:
        """Of the classes."""
        student = functional.log_softmax(z, dim=-1)
        return functional.kl_div(student.flatten(0, -2), q.flatten(0, -2), reduction="batchmean")


class Sigmoid(Link):
    """Yes or no for each of L labels, from L logits."""

    name = "sigmoid"
    has_probabilities = True

    def probabilities(self, z: Tensor, temperature: float = 1.0) -> Tensor:
        """sigmoid(z / T)."""
        return torch.sigmoid(z / temperature)

    def normalized(self, total: Tensor) -> Tensor:
        """A weighted mean of probabilities of yes is one."""
        return total

    def answers(self, q: Tensor) -> Tensor:
        """Logits."""
        return log(q) - log(1 - q)

    def sharpened(self, q: Tensor, temperature: float) -> Tensor:
        """sigmoid(logit(q) / T)."""
        return torch.sigmoid(self.answers(q) / temperature)

    def entropy(self, q: Tensor) -> float:
        """Of yes and no."""
        return -(torch.xlogy(q, q) + torch.xlogy(1 - q, 1 - q)).mean().item()

    def most_entropy(self, q: Tensor) -> float:
        """Of a half."""
        return math.log(2)

    def kl(self, z: Tensor, q: Tensor) -> Tensor:
        """Of yes and no, the mean over labels too, as in the training loss."""
        least = torch.xlogy(q, q) + torch.xlogy(1 - q, 1 - q)
        return (least + functional.binary_cross_entropy_with_logits(z, q, reduction="none")).mean()


NUMBERS, SOFTMAX, SIGMOID = Link(), Softmax(), Sigmoid()


def log(q: Tensor) -> Tensor:
    """The logarithm, finite also of 0."""
    return q.clamp_min(torch.finfo(q.dtype).tiny).log()


def fitting_temperature(link: Link, q: Tensor, share: float) -> float:
    """The temperature at which the mean entropy is this share of its maximum; 1 if it is below that already.

    Teachers that differ leave flat averages, the flatter the more teachers there are. Their order of classes is good,
    but a student learns little from targets that hardly differ.
    """
    goal = share * link.most_entropy(q)
    if link.entropy(q) <= goal:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if link.entropy(link.sharpened(q, middle)) > goal else (middle, high)
    return high
