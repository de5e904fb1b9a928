"""The built-in client optimizers: SGD and what builds on it, Adam and AdamW."""

import math

import torch
from torch import Tensor

from cpfl.federation.optimizers.base import ClientOptimizer, ClientState, descend
from cpfl.registry import require
from cpfl.settings import Federation
from cpfl.settings.types import FLOAT32


class SGD(ClientOptimizer):
    """Momentum as in Sutskever et al. 2013 and torch: the learning rate stands outside of the momentum.

    `nesterov` looks ahead along the momentum, `weight_decay` is added to the gradient.
    """

    def __init__(self, federation: Federation, nesterov: bool = False, weight_decay: float = 0.0) -> None:
        super().__init__(federation)
        require("nesterov", nesterov, not nesterov or federation.momentum > 0, "federation.momentum must be above 0")
        require("weight_decay", weight_decay, 0 <= weight_decay <= FLOAT32, f"0 or more, at most {FLOAT32:g}")
        self.momentum, self.nesterov, self.weight_decay = federation.momentum, nesterov, weight_decay
        self.buffers = ("momentum",) if federation.momentum else ()

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """v ← m v + g, w ← w − η v; Nesterov: w ← w − η (g + m v)."""
        if self.weight_decay:
            gradient.add_(params, alpha=self.weight_decay)
        if self.momentum:
            momentum = state.buffers["momentum"].mul_(self.momentum).add_(gradient)
            gradient = gradient.add_(momentum, alpha=self.momentum) if self.nesterov else momentum
        descend(params, gradient, state.lr)


class Adam(ClientOptimizer):
    """Kingma & Ba 2015, Algorithm 1; both moments start at zero every round.

    `beta1` and `beta2` are the decay rates of the moments, `epsilon` keeps small gradients from becoming large steps,
    `weight_decay` is added to the gradient.
    """

    buffers = ("first", "second")

    def __init__(
        self,
        federation: Federation,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(federation)
        require("beta1", beta1, 0 <= beta1 < 1, "0 or more, below 1")
        require("beta2", beta2, 0 <= beta2 < 1, "0 or more, below 1")
        require("epsilon", epsilon, 0 < epsilon <= FLOAT32, f"above 0, at most {FLOAT32:g}")
        require("weight_decay", weight_decay, 0 <= weight_decay <= FLOAT32, f"0 or more, at most {FLOAT32:g}")
        self.beta1, self.beta2, self.epsilon, self.weight_decay = beta1, beta2, epsilon, weight_decay

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², w ← w − η m̂ / (√v̂ + ε)."""
        if self.weight_decay:
            self.decay(params, gradient, state)
        first = state.buffers["first"].lerp_(gradient, 1 - self.beta1)
        second = state.buffers["second"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        size = torch.sqrt(second).div_(_bias(self.beta2, state.steps).sqrt()).add_(self.epsilon)
        descend(params, first.div(size), state.lr / _bias(self.beta1, state.steps))

    def decay(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """g ← g + λ w."""
        gradient.add_(params, alpha=self.weight_decay)


class AdamW(Adam):
    """Loshchilov & Hutter 2019, Algorithm 2: `weight_decay` is taken from the weights, not added to the gradient."""

    def decay(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """w ← w − η λ w."""
        params.mul_(1 - state.lr * self.weight_decay)


class FedProx(SGD):
    """Li et al. 2020, equation 2: the loss and μ/2 ‖w − wᵗ‖².

    `mu` is the pull back to the round's start; its authors try 0.001 to 1. The other arguments are SGD's.
    """

    needs_start = True

    def __init__(
        self, federation: Federation, mu: float = 0.01, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        super().__init__(federation, nesterov, weight_decay)
        require("mu", mu, 0 <= mu <= FLOAT32, f"0 or more, at most {FLOAT32:g}")
        self.mu = mu

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """g ← g + μ (w − wᵗ)."""
        super().step(params, gradient.add_(params - state.start, alpha=self.mu), state)


class Scaffold(SGD):
    """Karimireddy et al. 2020, Algorithm 1 with option II: the state of a client is its control variate c_i.

    It and c, the mean of all c_i (line 17), travel with the model and its update. The arguments are SGD's.
    """

    needs_start = has_client_state = True
    traffic = 2

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """Line 10: y_i ← y_i − η (g_i(y_i) − c_i + c)."""
        super().step(params, gradient.sub_(state.client_state).add_(state.mean_client_state), state)

    def update_client_state(self, params: Tensor, state: ClientState) -> Tensor:
        """Line 12: c_i⁺ ← c_i − c + (x − y_i) / (K η)."""
        change = (state.start - params).div_(state.steps * state.lr)
        return change.add_(state.client_state).sub_(state.mean_client_state)


class FedDyn(SGD):
    """Acar et al. 2021, Algorithm 1: a client's state is ∇L_k(θ_k), their mean is h.

    The server computes both from the models that it sees, so nothing more travels. `alpha` is the paper's α, for which
    its authors take 0.1, 0.01 and 0.001. The other arguments are SGD's.
    """

    needs_start = has_client_state = True

    def __init__(
        self, federation: Federation, alpha: float = 0.01, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        super().__init__(federation, nesterov, weight_decay)
        require("alpha", alpha, 1e-12 <= alpha <= FLOAT32, f"1e-12 to {FLOAT32:g}")
        self.alpha = alpha

    def step(self, params: Tensor, gradient: Tensor, state: ClientState) -> None:
        """The gradient of L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + α/2 ‖θ − θᵗ‖²."""
        gradient.sub_(state.client_state).add_(params - state.start, alpha=self.alpha)
        super().step(params, gradient, state)

    def update_client_state(self, params: Tensor, state: ClientState) -> Tensor:
        """∇L_k(θ_k) ← ∇L_k(θ_k) − α (θ_k − θᵗ)."""
        return (state.start - params).mul_(self.alpha).add_(state.client_state)

    def correct_model(self, model: Tensor, cohort: Tensor) -> Tensor:
        """θ ← mean of θ_k − h / α, with h ← h − α / m · Σ (θ_k − θᵗ): the mean of the clients' states."""
        return model - cohort / self.alpha


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 − βᵗ, exact for a β near 1 too."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)
