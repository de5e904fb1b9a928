"""The local parts that come along: SGD and what builds on it, Adam and AdamW."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cpfl.experiment import Federation
from cpfl.federation.local_part import Course, LocalPart, descend


class Sgd(LocalPart):
    """Momentum as Sutskever et al. 2013 have it, as torch does: the rate stands outside of the momentum."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.memory = ("momentum",) if federation.momentum else ()

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """v ← m v + g, w ← w − η v; Nesterov: w ← w − η (g + m v)."""
        settings = self.settings
        if settings.weight_decay:
            slope.add_(params, alpha=settings.weight_decay)
        if settings.momentum:
            momentum = at.memory["momentum"].mul_(settings.momentum).add_(slope)
            slope = slope.add_(momentum, alpha=settings.momentum) if settings.nesterov else momentum
        descend(params, slope, at.lr)


class Adam(LocalPart):
    """Kingma & Ba 2015, Algorithm 1; both memories start at zero every round."""

    memory = ("first", "second")

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², w ← w − η m̂ / (√v̂ + ε)."""
        settings = self.settings
        if settings.weight_decay:
            self.decay(params, slope, at)
        first = at.memory["first"].lerp_(slope, 1 - settings.beta1)
        second = at.memory["second"].mul_(settings.beta2).addcmul_(slope, slope, value=1 - settings.beta2)
        size = torch.sqrt(second).div_(_bias(settings.beta2, at.count).sqrt()).add_(settings.epsilon)
        descend(params, first.div(size), at.lr / _bias(settings.beta1, at.count))

    def decay(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """Weight decay as a part of the loss."""
        slope.add_(params, alpha=self.settings.weight_decay)


class AdamW(Adam):
    """Loshchilov & Hutter 2019, Algorithm 2: the decay is taken from the weights, not put into the memories."""

    def decay(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """w ← w − η λ w."""
        params.mul_(1 - at.lr * self.settings.weight_decay)


class FedProx(Sgd):
    """Li et al. 2020, equation 2: the loss and μ/2 ‖w − wᵗ‖²."""

    needs_start = True

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """g ← g + μ (w − wᵗ)."""
        assert at.start is not None
        super().step(params, slope.add_(params - at.start, alpha=self.settings.mu), at)


class Scaffold(Sgd):
    """Karimireddy et al. 2020, Algorithm 1 with option II: a client's row is its control variate c_i, the cohort's c.

    Both travel with the model and its update. c is the mean of all c_i, as its line 17 keeps it.
    """

    needs_start = keeps_rows = True
    traffic = 2

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """Line 10: y_i ← y_i − η (g_i(y_i) − c_i + c)."""
        assert at.client is not None
        assert at.cohort is not None
        super().step(params, slope.sub_(at.client).add_(at.cohort), at)

    def leave(self, params: Tensor, at: Course) -> Tensor:
        """Line 12: c_i⁺ ← c_i − c + (x − y_i) / (K η)."""
        assert at.start is not None
        assert at.client is not None
        assert at.cohort is not None
        return (at.start - params).div_(at.count * at.lr).add_(at.client).sub_(at.cohort)


class FedDyn(Sgd):
    """Acar et al. 2021, Algorithm 1: a client's row is ∇L_k(θ_k), the cohort's is h.

    The server can tell both from the models that it sees, so nothing more travels.
    """

    needs_start = keeps_rows = True

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """The slope of L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + α/2 ‖θ − θᵗ‖²."""
        assert at.start is not None
        assert at.client is not None
        super().step(params, slope.sub_(at.client).add_(params - at.start, alpha=self.settings.dyn), at)

    def leave(self, params: Tensor, at: Course) -> Tensor:
        """∇L_k(θ_k) ← ∇L_k(θ_k) − α (θ_k − θᵗ)."""
        assert at.start is not None
        assert at.client is not None
        return (at.start - params).mul_(self.settings.dyn).add_(at.client)

    def settle(self, model: Tensor, cohort: Tensor) -> Tensor:
        """θ ← mean of θ_k − h / α, with h ← h − α / m · Σ (θ_k − θᵗ): the mean of the clients' rows."""
        return model - cohort / self.settings.dyn


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 − βᵗ, exact for a β near 1 too."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)
