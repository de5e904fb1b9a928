"""Rounds whose updates are of different age: some clients began with a model that is no longer their cohort's newest.

Axes: K participants, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpfl.engines.lanes.stack import Layout
from cpfl.federation import server, staleness
from cpfl.federation.reports import Work
from cpfl.federation.server_part import ServerPart


@dataclass(frozen=True)
class Aged:
    """Where a round's clients began, and by which rule their updates become one model."""

    rule: str
    rounds: dict[int, int]  # of clients that began in an earlier one
    starts: dict[int, Tensor]  # the models of those rounds, as rows
    number: int

    @classmethod
    def of(cls, work: Work, layout: Layout, device: torch.device) -> Aged:
        """A round that is to be done."""
        starts = {client: layout.row(origin.model, device) for client, origin in work.origins.items()}
        rounds = {client: origin.round for client, origin in work.origins.items()}
        return cls(work.rule, rounds, starts, work.round)

    def began(self, client: int) -> int:
        """The round whose batches a client trains on."""
        return self.rounds.get(client, self.number)

    def merged(
        self, part: ServerPart, clients: Sequence[int], sizes: Sequence[int], models_KP: Tensor, newest_P: Tensor
    ) -> Tensor:
        """The clients' mean, as the server part takes it."""
        starts_KP = torch.stack([self.starts.get(client, newest_P) for client in clients])
        updates_KP = part.receive(models_KP, starts_KP) - starts_KP
        weights = [server.weight(part.settings.weights, size) for size in sizes]
        ages = [self.number - self.began(client) for client in clients]
        return newest_P + staleness.joined(self.rule, updates_KP, ages, weights)
