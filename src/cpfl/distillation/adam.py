"""Adam's step on a CPU, by torch's own function.

torch.optim.Adam does the same, but loads torch's compiler before its first step: seconds, more than a small run takes.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.adam import adam

BETAS, EPS = (0.9, 0.999), 1e-8  # torch.optim.Adam's own


class Adam:
    """What a distillation needs of torch.optim.Adam, bit by bit the same."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.lr = lr
        self._states = [(p, torch.zeros_like(p), torch.zeros_like(p), torch.tensor(0.0)) for p in parameters]

    def zero_grad(self) -> None:
        """Forget the last gradients."""
        for parameter, *_ in self._states:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        states = [state for state in self._states if state[0].grad is not None]
        if states:
            params, means, squared_losses, counts = map(list, zip(*states, strict=True))
            gradients = [p.grad for p in params]
            beta1, beta2 = BETAS
            adam(
                params, gradients, means, squared_losses, [], counts,
                amsgrad=False, beta1=beta1, beta2=beta2, lr=self.lr, weight_decay=0.0, eps=EPS, maximize=False,
            )  # fmt: skip
