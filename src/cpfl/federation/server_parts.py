"""The server parts that come along: the mean, server optimisers, FedNova, and those that bear with bad clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cpfl.errors import CpflError
from cpfl.experiment import Federation
from cpfl.federation.server_part import ServerPart
from cpfl.robust_settings import least

ADAPTIVE_LR = 10**-1.5  # in the middle of what Reddi et al. 2021 search; to be tuned, as they do


class MeanPart(ServerPart):
    """FedAvg (McMahan et al. 2017, Algorithm 1): the mean is the next model."""


class FedAvgM(ServerPart):
    """Hsu et al. 2019, section 4.3: momentum on the server."""

    memory = ("momentum",)

    def update(self, model: Tensor, mean: Tensor, pace: float | Tensor, memory: dict[str, Tensor]) -> Tensor:
        """v ← β v + Δ, w ← w + η v."""
        momentum = memory["momentum"].mul_(self.settings.server_momentum).add_(mean - model)
        return model.add(momentum, alpha=self.settings.server_lr or 1.0)


class _Adaptive(ServerPart):
    """Reddi et al. 2021, Algorithm 2; without bias correction, and v begins at τ²."""

    memory = ("first", "second")

    def first(self, name: str) -> float:
        """v₋₁ ≥ τ²."""
        return self.settings.server_tau**2 if name == "second" else 0.0

    def update(self, model: Tensor, mean: Tensor, pace: float | Tensor, memory: dict[str, Tensor]) -> Tensor:
        """m ← β₁ m + (1 − β₁) Δ, x ← x + η m / (√v + τ)."""
        settings = self.settings
        change = mean - model
        first = memory["first"].lerp_(change, 1 - settings.server_momentum)
        second = self.grow(memory["second"], change.square_())
        size = second.sqrt().add_(settings.server_tau)
        return model.addcdiv(first, size, value=settings.server_lr or ADAPTIVE_LR)

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v from Δ², in place."""
        raise NotImplementedError


class FedAdagrad(_Adaptive):
    """v only grows."""

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← v + Δ²."""
        return second.add_(squares)


class FedAdam(_Adaptive):
    """v forgets."""

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← β₂ v + (1 − β₂) Δ²."""
        return second.lerp_(squares, 1 - self.settings.server_beta2)


class FedYogi(_Adaptive):
    """v forgets no faster than Δ² says."""

    def grow(self, second: Tensor, squares: Tensor) -> Tensor:
        """v ← v − (1 − β₂) Δ² sign(v − Δ²)."""
        return second.addcmul_(squares, torch.sign(second - squares), value=self.settings.server_beta2 - 1)


class FedNova(ServerPart):
    """Wang et al. 2020, equation 6: clients that did more steps do not say more.

    Each update is divided by ‖a_i‖₁, what its steps add up to, and their weighted mean multiplied by τ_eff = Σ p_i
    ‖a_i‖₁. That is a mean with other weights, w_i / ‖a_i‖₁, followed by a step of another length, the pace.
    """

    def weight(self, samples: int, steps: int) -> float:
        """p_i / ‖a_i‖₁."""
        return super().weight(samples, steps) / self._work(steps)

    def pace(self, clients: Sequence[tuple[int, int]]) -> float:
        """τ_eff Σ p_i / ‖a_i‖₁."""
        shares = [super(FedNova, self).weight(*client) for client in clients]
        work = sum(share * self._work(steps) for share, (_, steps) in zip(shares, clients, strict=True))
        return work * sum(self.weight(*client) for client in clients) / sum(shares) ** 2

    def update(self, model: Tensor, mean: Tensor, pace: float | Tensor, memory: dict[str, Tensor]) -> Tensor:
        """x ← x + τ_eff Σ p_i Δ_i / ‖a_i‖₁."""
        return model + (mean - model) * pace

    def _work(self, steps: int) -> float:
        """‖a_i‖₁ of SGD with momentum ρ (section 4): (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ)."""
        rho = self.settings.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


class Median(ServerPart):
    """Yin et al. 2018, Definition 1: of every number the median; of an even count, the middle two's mean."""

    needs_all = True

    def join(self, models_KP: Tensor) -> Tensor:
        """Number by number."""
        ordered_KP, count = models_KP.sort(dim=0).values, len(models_KP)
        return (ordered_KP[(count - 1) // 2] + ordered_KP[count // 2]) / 2


class TrimmedMean(ServerPart):
    """Yin et al. 2018, Definition 2: of every number the mean, without the largest and smallest β-fraction.

    A β above 0 is for one bad client at least: where β of K is less than one client, one is left out on either side.
    """

    needs_all = True

    def join(self, models_KP: Tensor) -> Tensor:
        """Number by number; a fraction of a client stays, and of one or two clients both."""
        count, trim = len(models_KP), self.settings.trim
        out = int(trim * count + 1e-9)  # 0.29 of 100 is 29, whatever floats say
        if trim and count > 2:
            out = max(1, out)
        return models_KP.sort(dim=0).values[out : count - out].mean(dim=0)


class Krum(ServerPart):
    """Blanchard et al. 2017, section 4: the model with the nearest neighbours; multi-Krum: the mean of several such."""

    needs_all = True

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.least = least(federation)

    def join(self, models_KP: Tensor) -> Tensor:
        """A score is the sum of squared distances to the K − f − 2 nearest others; of equal ones the first wins."""
        count, settings = len(models_KP), self.settings
        if count < self.least:  # only attackers might be left
            raise CpflError(
                f"federation.byzantine = {settings.byzantine} and federation.chosen = {settings.chosen} need "
                f"{self.least} results, and a round brought {count}: let more clients take part, or fewer be lost"
            )
        distances_KK = torch.stack([(models_KP - model).square_().sum(dim=1) for model in models_KP])
        near = max(0, count - settings.byzantine - 2)  # none: one or two clients, and no attacker among them
        scores_K = distances_KK.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)  # the nearest of all is itself
        best = scores_K.argsort(stable=True)[: settings.chosen]
        return models_KP[best].mean(dim=0)
