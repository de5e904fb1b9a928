"""What every local part is: how a client's slope becomes its next step.

A part works on rows of parameters, (P,) for one client or (L, P) for L of them in training side by side, and must not
ask which: what it computes along the last axis fits both. On a GPU its steps are recorded once and repeated, so they
write into the tensors they are given, and branch on settings, never on numbers in tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cpfl.experiment import Federation


@dataclass
class Course:
    """Where a client is in its round; all rows are of the parameters' shape."""

    lr: float | Tensor  # of the round; (L, 1) where clients side by side may be in different rounds
    count: Tensor  # steps, this one included: (1,) or (L, 1)
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the part named, zero as the round begins
    start: Tensor | None = None  # the cohort's model as the round began; if the part `needs_start`
    client: Tensor | None = None  # the client's row, zero before its first round; if the part `keeps_rows`
    cohort: Tensor | None = None  # the mean of such rows over all clients of the cohort


Step = Callable[[Tensor, Tensor, Course], None]


class LocalPart:
    """Subclass it, write `step`, and name it in `federation.local`; settings of its own come as keyword arguments."""

    memory: tuple[str, ...] = ()  # rows that last for a client's round
    needs_start = False
    keeps_rows = False  # a row for each client lasts from round to round; `leave` gives it
    traffic = 1  # models' worth of bytes, each way

    def __init__(self, federation: Federation) -> None:
        self.settings = federation

    def step(self, params: Tensor, slope: Tensor, at: Course) -> None:
        """Change `params` in place by one step; `slope`, of the loss, may be written over."""
        raise NotImplementedError

    def leave(self, params: Tensor, at: Course) -> Tensor:
        """The client's row from now on, as it ends its round with these parameters."""
        raise NotImplementedError

    def settle(self, model: Tensor, cohort: Tensor) -> Tensor:
        """The cohort's new model, from what the server part made and the mean of the clients' rows."""
        return model

    def learn(self, params: Tensor, slope: Tensor, at: Course, step: Step | None = None) -> None:
        """A step with the slope cut to the length that is allowed; `step` is the part's own, compiled."""
        if self.settings.clip:
            slope = cut(slope, self.settings.clip)
        (step or self.step)(params, slope, at)


def descend(params: Tensor, slope: Tensor, lr: float | Tensor) -> None:
    """params ← params − lr · slope."""
    if isinstance(lr, Tensor):
        params.addcmul_(slope, lr, value=-1)
    else:
        params.sub_(slope, alpha=lr)


def cut(rows: Tensor, longest: float) -> Tensor:
    """Rows shortened to a length where they are longer (Pascanu et al. 2013, Algorithm 1), written over."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows.mul_((longest / lengths).clamp_(max=1))
