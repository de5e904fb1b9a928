"""A round's models become the cohort's next: what is learnt goes through the server part, the rest is averaged."""

from __future__ import annotations

import torch
from torch import Tensor

from cpfl.engines.lanes.stack import Layout
from cpfl.federation import server, staleness
from cpfl.federation.reports import Origin, Work
from cpfl.federation.server_part import Joining, ServerPart
from cpfl.models import State


class Gathering:
    """Takes clients' models in, one after the other, in the clients' order."""

    def __init__(self, layout: Layout, part: ServerPart, work: Work, device: torch.device) -> None:
        self._layout, self._part, self._device, self._work = layout, part, device, work
        self.start = {name: value.to(device) for name, value in work.model.items()}
        kept = {*layout.names, *layout.ties, *layout.frozen}
        self._others = [name for name in self.start if name not in kept]
        self.start_P = layout.row(self.start, device)
        self.memory = {name: self.row(work.memory.cohort.get(name), part.first(name)) for name in part.memory}
        self._joining, self._mean = Joining(part, self.start_P), server.Mean()
        self._sizes: list[tuple[int, int]] = []
        self._arrived: list[staleness.Arrived] = []  # where age counts, all models are needed

    def row(self, state: State | None, first: float = 0.0) -> Tensor:
        """What was kept, as a row, or as it begins."""
        return torch.full_like(self.start_P, first) if state is None else self._layout.row(state, self._device)

    def add(self, state: State, samples: int, steps: int, origin: Origin | None = None) -> None:
        """A client's model, trained on so many samples in so many steps, from an earlier round's model perhaps."""
        weight, row = server.weight(self._part.settings.weights, samples), self._layout.row(state, self._device)
        if self._work.rule == "mean":
            self._sizes.append((samples, steps))
            self._joining.add(row, self._part.weight(samples, steps))
            self._mean.add({name: state[name] for name in self._others}, weight)
            return
        began = self.start if origin is None else {n: v.to(self._device) for n, v in origin.model.items()}
        received = self._layout.views(self._part.receive(row, self._layout.row(began, self._device)))
        ended = {name: received[name] if name in received else value.clone() for name, value in state.items()}
        age = 0 if origin is None else self._work.round - origin.round
        self._arrived.append(staleness.Arrived(ended, began, age, weight))

    def result(self) -> Tensor:
        """What the server part makes of them; its memory moves on with it."""
        if not self._arrived:
            return self._joining.result(self._part.pace(self._sizes), self.memory)
        merged = staleness.merged(self._work.rule, self.start, self._arrived)
        self._mean.add({name: merged[name] for name in self._others}, 1.0)
        return self._part.update(self.start_P, self._layout.row(merged, self._device), 1.0, self.memory)

    def model(self, row: Tensor) -> State:
        """The cohort's next model from a row of parameters."""
        found = {**self._layout.state(row), **self._mean.result()}
        return {name: found[name].clone() for name in self.start}
