"""A round's models become the cohort's next: what is learnt goes through the server part, the rest is averaged."""

from __future__ import annotations

import torch
from torch import Tensor

from cpfl.engines.lanes.stack import Layout
from cpfl.federation import server
from cpfl.federation.memory import Memory
from cpfl.federation.server_part import Joining, ServerPart
from cpfl.models import State


class Gathering:
    """Takes clients' models in, one after the other, in the clients' order."""

    def __init__(self, layout: Layout, part: ServerPart, start: State, known: Memory, device: torch.device) -> None:
        self._layout, self._part, self._device = layout, part, device
        self._names = list(start)
        self._others = [name for name in start if name not in layout.names and name not in layout.ties]
        self.start_P = layout.row(start, device)
        self.memory = {name: self.row(known.cohort.get(name), part.first(name)) for name in part.memory}
        self._joining, self._mean = Joining(part, self.start_P), server.Mean()
        self._sizes: list[tuple[int, int]] = []

    def row(self, state: State | None, first: float = 0.0) -> Tensor:
        """What was kept, as a row, or as it begins."""
        return torch.full_like(self.start_P, first) if state is None else self._layout.row(state, self._device)

    def add(self, state: State, samples: int, steps: int) -> None:
        """A client's model, trained on so many samples in so many steps."""
        self._sizes.append((samples, steps))
        self._joining.add(self._layout.row(state, self._device), self._part.weight(samples, steps))
        weight = server.weight(self._part.settings.weights, samples)
        self._mean.add({name: state[name] for name in self._others}, weight)

    def result(self) -> Tensor:
        """What the server part makes of them; its memory moves on with it."""
        return self._joining.result(self._part.pace(self._sizes), self.memory)

    def model(self, row: Tensor) -> State:
        """The cohort's next model from a row of parameters."""
        found = {**self._layout.state(row), **self._mean.result()}
        return {name: found[name].clone() for name in self._names}
