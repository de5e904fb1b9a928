"""The built-in server optimizers: the mean, momentum and adaptive ones, FedNova, and those robust to bad clients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpfl.errors import CpflError
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.registry import require
from cpfl.settings import Federation
from cpfl.settings.types import FLOAT32, MOST

SMALLEST = 1e-12  # that single precision can divide by and square
ADAPTIVE_LR = 10**-1.5  # in the middle of what Reddi et al. 2021 search; to be tuned, as they do


class FedAvg(ServerOptimizer):
    """FedAvg (McMahan et al. 2017, Algorithm 1): the mean is the next model."""


class FedAvgM(ServerOptimizer):
    """Hsu et al. 2019, section 4.3: a step of rate `lr` with `momentum` on the server."""

    buffers = ("momentum",)

    def __init__(self, federation: Federation, lr: float = 1.0, momentum: float = 0.9) -> None:
        super().__init__(federation)
        require("lr", lr, 0 < lr <= FLOAT32, f"above 0, at most {FLOAT32:g}")
        require("momentum", momentum, 0 <= momentum < 1, "0 or more, below 1")
        self.lr, self.momentum = lr, momentum

    def update(self, model: Tensor, mean: Tensor, update_scale: float | Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """v ← β v + Δ, w ← w + η v."""
        momentum = buffers["momentum"].mul_(self.momentum).add_(mean - model)
        return model.add(momentum, alpha=self.lr)


class FedAdam(ServerOptimizer):
    """Reddi et al. 2021, Algorithm 2: v forgets. There is no bias correction, and v begins at τ².

    `lr` is η, `beta1` and `beta2` are the decay rates of m and v as the authors set them, `tau` is how adaptive it is:
    smaller is more.
    """

    buffers = ("first", "second")

    def __init__(
        self,
        federation: Federation,
        lr: float = ADAPTIVE_LR,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        super().__init__(federation)
        require("lr", lr, 0 < lr <= FLOAT32, f"above 0, at most {FLOAT32:g}")
        require("beta1", beta1, 0 <= beta1 < 1, "0 or more, below 1")
        require("beta2", beta2, 0 <= beta2 < 1, "0 or more, below 1")
        require("tau", tau, SMALLEST <= tau <= MOST, f"{SMALLEST:g} to {MOST:,}")
        self.lr, self.beta1, self.beta2, self.tau = lr, beta1, beta2, tau

    def initial_value(self, name: str) -> float:
        """v₋₁ ≥ τ²."""
        return self.tau**2 if name == "second" else 0.0

    def update(self, model: Tensor, mean: Tensor, update_scale: float | Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """m ← β₁ m + (1 − β₁) Δ, x ← x + η m / (√v + τ)."""
        change = mean - model
        first = buffers["first"].lerp_(change, 1 - self.beta1)
        second = self.grow(buffers["second"], change.square_())
        size = second.sqrt().add_(self.tau)
        return model.addcdiv(first, size, value=self.lr)

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← β₂ v + (1 − β₂) Δ², in place."""
        return second.lerp_(squares, 1 - self.beta2)


class FedAdagrad(FedAdam):
    """v only grows, and `beta1` is 0 as its authors set it."""

    def __init__(self, federation: Federation, lr: float = ADAPTIVE_LR, beta1: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(federation, lr, beta1, tau=tau)

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← v + Δ²."""
        return second.add_(squares)


class FedYogi(FedAdam):
    """v forgets no faster than Δ² says."""

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← v − (1 − β₂) Δ² sign(v − Δ²)."""
        return second.addcmul_(squares, torch.sign(second - squares), value=self.beta2 - 1)


class FedNova(ServerOptimizer):
    """Wang et al. 2020, equation 6: clients that did more steps do not count more.

    Each update is divided by ‖a_i‖₁, what its steps add up to, and their weighted mean multiplied by τ_eff = Σ p_i
    ‖a_i‖₁. That is a mean with other weights, w_i / ‖a_i‖₁, followed by a step of another length, `update_scale`.
    """

    def weight(self, samples: int, steps: int) -> float:
        """p_i / ‖a_i‖₁."""
        return super().weight(samples, steps) / self._work(steps)

    def update_scale(self, clients: Sequence[tuple[int, int]]) -> float:
        """τ_eff Σ p_i / ‖a_i‖₁."""
        shares = [super(FedNova, self).weight(*client) for client in clients]
        work = sum(share * self._work(steps) for share, (_, steps) in zip(shares, clients, strict=True))
        return work * sum(self.weight(*client) for client in clients) / sum(shares) ** 2

    def update(self, model: Tensor, mean: Tensor, update_scale: float | Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """x ← x + τ_eff Σ p_i Δ_i / ‖a_i‖₁."""
        return model + (mean - model) * update_scale

    def _work(self, steps: int) -> float:
        """‖a_i‖₁ of SGD with momentum ρ (section 4): (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ)."""
        rho = self.settings.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


class Median(ServerOptimizer):
    """Yin et al. 2018, Definition 1: of every number the median; of an even count, the middle two's mean."""

    needs_all_models = True

    def aggregate(self, models_KP: Tensor) -> Tensor:
        """Number by number."""
        ordered_KP, count = models_KP.sort(dim=0).values, len(models_KP)
        return (ordered_KP[(count - 1) // 2] + ordered_KP[count // 2]) / 2


class TrimmedMean(ServerOptimizer):
    """Yin et al. 2018, Definition 2: of every number the mean, without the largest and smallest β-fraction.

    `trim` is β. One above 0 is for at least one bad client: where β of K is less than one client, one is left out on
    either side.
    """

    needs_all_models = True

    def __init__(self, federation: Federation, trim: float = 0.1) -> None:
        super().__init__(federation)
        require("trim", trim, 0 <= trim < 0.5, "0 or more, below 0.5")
        self.trim = trim

    def aggregate(self, models_KP: Tensor) -> Tensor:
        """Number by number; a fraction of a client stays, and of one or two clients both."""
        count = len(models_KP)
        out = int(self.trim * count + 1e-9)  # 0.29 of 100 is 29, whatever floats say
        if self.trim and count > 2:
            out = max(1, out)
        return models_KP.sort(dim=0).values[out : count - out].mean(dim=0)


class Krum(ServerOptimizer):
    """Blanchard et al. 2017, section 4: the model with the nearest neighbours; multi-Krum: the mean of several such.

    `num_byzantine` is f, how many participants may send anything; `num_selected` is how many models are averaged.
    """

    needs_all_models = True

    def __init__(self, federation: Federation, num_byzantine: int = 0, num_selected: int = 1) -> None:
        super().__init__(federation)
        require("num_byzantine", num_byzantine, num_byzantine >= 0, "0 or more")
        require("num_selected", num_selected, num_selected >= 1, "1 or more")
        self.num_byzantine, self.num_selected = num_byzantine, num_selected
        outvoted = 2 * num_byzantine + 3 if num_byzantine else 1  # Proposition 4.2: 2f + 2 < n
        self.min_results = max(outvoted, num_byzantine + num_selected)  # of n the f farthest must be left out

    def shortage(self, participants: int, cohort: str) -> str:
        """Which of the two arguments asks for more participants."""
        bad, selected = self.num_byzantine, self.num_selected
        if bad and participants < 2 * bad + 3:
            return (
                f"federation.server_args.num_byzantine = {bad} needs {2 * bad + 3} participants in every round, and "
                f"{cohort} has {participants}: allowed are 0 to {max(0, (participants - 3) // 2)}"
            )
        return (
            f"federation.server_args.num_selected = {selected} must leave out num_byzantine = {bad} of a round's "
            f"participants, and {cohort} has {participants}: allowed are 1 to {participants - bad}"
        )

    def aggregate(self, models_KP: Tensor) -> Tensor:
        """A score is the sum of squared distances to the K − f − 2 nearest others; of equal ones the first wins."""
        count = len(models_KP)
        if count < self.min_results:  # only attackers might be left
            raise CpflError(
                f"federation.server = 'krum' with num_byzantine = {self.num_byzantine} and num_selected = "
                f"{self.num_selected} needs {self.min_results} results, and a round returned {count}: let more clients "
                "take part, or lose fewer"
            )
        distances_KK = torch.stack([(models_KP - model).square_().sum(dim=1) for model in models_KP])
        near = max(0, count - self.num_byzantine - 2)  # none: one or two clients, and no attacker among them
        scores_K = distances_KK.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)  # the nearest of all is itself
        best = scores_K.argsort(stable=True)[: self.num_selected]
        return models_KP[best].mean(dim=0)
