"""What every server part is: how clients' models become the cohort's next one.

A part works on rows of parameters, (P,) for one cohort or (V, P) for several, as local parts do. Clients' models are
added up as they come, so that memory does not grow with the participants; a part that `needs_all` is given them
together instead, and engines keep them until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cpfl.experiment import Federation
from cpfl.federation.local_part import cut
from cpfl.federation.server import weight


class ServerPart:
    """Subclass it, write `update` or `join`, and name it in `federation.server`."""

    memory: tuple[str, ...] = ()  # rows that last from round to round
    needs_all = False  # `join` makes the mean
    least = 1  # clients' models without which there is no next one

    def __init__(self, federation: Federation) -> None:
        self.settings = federation

    def update(self, model: Tensor, mean: Tensor, pace: float | Tensor, memory: dict[str, Tensor]) -> Tensor:
        """The next model, from the last one and the mean of the clients'; memory is written into."""
        return mean

    def join(self, models_KP: Tensor) -> Tensor:
        """One model in place of the mean, from all K clients' of a round, in their order."""
        raise NotImplementedError

    def first(self, name: str) -> float:
        """What a row of memory is filled with before the first round."""
        return 0.0

    def weight(self, samples: int, steps: int) -> float:
        """A client's say in the mean."""
        return weight(self.settings.weights, samples)

    def pace(self, clients: Sequence[tuple[int, int]]) -> float:
        """A number for `update`, from the (samples, steps) of a round's clients."""
        return 1.0

    def receive(self, models: Tensor, start: Tensor) -> Tensor:
        """What clients' models count as: those far from the round's start are brought nearer (Sun et al. 2019)."""
        longest = self.settings.update_norm
        return cut(models - start, longest).add_(start) if longest else models


class Joining:
    """Clients' models of one round on their way into the next, one row each, in the clients' order."""

    def __init__(self, part: ServerPart, start: Tensor) -> None:
        self._part, self._start = part, start
        self._sum: Tensor | None = None
        self._weight = 0.0
        self._kept: list[Tensor] = []

    def add(self, model: Tensor, weight: float) -> None:
        """Take one client's model in; the tensor may be used for another then."""
        model = self._part.receive(model, self._start)
        if self._part.needs_all:
            self._kept.append(model.clone())
        elif self._sum is None:
            self._sum = model * weight
        else:
            self._sum.add_(model, alpha=weight)
        self._weight += weight

    def result(self, pace: float, memory: dict[str, Tensor]) -> Tensor:
        """The cohort's next model; memory moves on with it."""
        if self._part.needs_all:
            mean = self._part.join(torch.stack(self._kept))
        else:
            assert self._sum is not None
            mean = self._sum / self._weight
        return self._part.update(self._start, mean, pace, memory)
