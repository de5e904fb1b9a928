"""What local and server parts remember from round to round, on the device, each row where it always is.

Axes: M clients, N cohorts, S seats of clients whose rounds are under way, V models in one look, P parameters; row M, N
or S is for places that stay empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl import round_settings
from cpfl.engines.lanes.stack import Layout
from cpfl.experiment import Experiment, Federation
from cpfl.federation import parts, selection
from cpfl.federation.memory import ROWS, Memory
from cpfl.federation.server_part import ServerPart
from cpfl.federation.session import Session


class Keeping:
    """The parts' rows, of clients and of cohorts; what a part does not need is not there."""

    def __init__(
        self,
        experiment: Experiment,
        plan: Sequence[Sequence[int]],
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.local, self.server = parts.local_part(experiment.federation), parts.server_part(experiment.federation)
        self._layout, self._device = layout, device
        plain = type(self.server).receive is ServerPart.receive and not experiment.federation.update_norm
        self.receives = not plain  # clients' models count as something else than they are
        # Updates of different age become one model by rules that must see all of them.
        self.aged = bool(round_settings.aged(experiment.federation))
        self.one_by_one = self.aged or self.server.needs_all
        clients, cohorts = experiment.clients + 1, experiment.cohorts + 1

        def rows(count: int, needed: bool) -> Tensor:
            return torch.zeros(count if needed else 0, layout.size, dtype=dtype, device=device)

        self.rows_MP = rows(clients, self.local.keeps_rows)  # a local part's, of clients
        self.means_NP = rows(cohorts, self.local.keeps_rows)  # their means
        self.moved_NP = rows(cohorts, self.local.keeps_rows)  # how far a round has moved them, in all
        self.seats = first_seats(experiment.federation, plan)
        self.models_SP = rows(int(self.seats[-1]) + 1, self.one_by_one)  # of clients that have ended
        self.server_NP = {name: rows(cohorts, True) for name in self.server.memory}

    def load(self, sessions: Sequence[Session]) -> None:
        """Begin as these sessions say; the first lies at place 0."""
        for rows in (self.rows_MP, self.means_NP, self.moved_NP):
            rows.zero_()
        for name, rows in self.server_NP.items():
            rows.fill_(self.server.first(name))
        by_name = {**self.server_NP, ROWS: self.means_NP}
        for place, session in enumerate(sessions):
            for name, state in session.memory.cohort.items():
                by_name[name][place] = self._layout.row(state, self._device)
            for client, state in session.memory.clients.items():
                self.rows_MP[client] = self._layout.row(state, self._device)

    def leave(self, lanes_rows: Tensor, client_rows: Tensor, clients: Tensor, places: Tensor) -> None:
        """Clients' rows as they end their rounds, and before; every cohort is there at most once."""
        self.rows_MP.index_copy_(0, clients, lanes_rows)
        moved_FP = self.moved_NP.index_select(0, places).add_(lanes_rows).sub_(client_rows)
        self.moved_NP.index_copy_(0, places, moved_FP)

    def leave_alike(
        self, lanes_rows: Tensor, client_rows: Tensor, filled: Tensor, clients: Tensor, place: Tensor
    ) -> None:
        """The same for clients of one cohort; where nobody is, there may be anything, and nothing is moved."""
        self.rows_MP.index_copy_(0, clients, lanes_rows)
        moved_1P = torch.where(filled, lanes_rows - client_rows, 0).sum(0, keepdim=True)
        self.moved_NP.index_copy_(0, place, self.moved_NP.index_select(0, place).add_(moved_1P))

    def advance(
        self, models_VP: Tensor, means_VP: Tensor, places: Tensor, paces_V1: Tensor, sizes_V1: Tensor
    ) -> Tensor:
        """The next models of the cohorts at these places, from their last ones and the means of their clients'."""
        memory = {name: rows.index_select(0, places) for name, rows in self.server_NP.items()}
        models_VP = self.server.update(models_VP, means_VP, paces_V1, memory)
        for name, rows in self.server_NP.items():
            rows.index_copy_(0, places, memory[name])
        if self.local.keeps_rows:
            moved_VP = self.moved_NP.index_select(0, places).div_(sizes_V1)
            rows_VP = self.means_NP.index_select(0, places).add_(moved_VP)
            self.means_NP.index_copy_(0, places, rows_VP)
            self.moved_NP.index_fill_(0, places, 0)
            models_VP = self.local.settle(models_VP, rows_VP)
        return models_VP

    def seen(self, places: Tensor, clients: Tensor) -> Seen:
        """The rows of these cohorts and clients as they are now."""
        cohorts = {name: rows.index_select(0, places) for name, rows in self.server_NP.items()}
        if not self.local.keeps_rows:
            return Seen(self._layout, cohorts, None)
        cohorts[ROWS] = self.means_NP.index_select(0, places)
        return Seen(self._layout, cohorts, self.rows_MP.index_select(0, clients))


def first_seats(federation: Federation, plan: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The first seat of every cohort, and the one after the last: a seat for each client that one round may have."""

    def most(clients: int) -> int:
        if federation.late == "stale":  # those of all earlier rounds may come at once
            return clients
        return min(clients, federation.buffer or selection.size(federation, clients))

    return np.cumsum([0, *(most(len(cohort)) for cohort in plan)])


@dataclass(frozen=True)
class Seen:
    """Rows after some rounds of different cohorts, for their sessions."""

    layout: Layout
    cohorts: dict[str, Tensor]  # (V, P)
    clients: Tensor | None  # of all rounds' participants, one after the other

    def memory(self, k: int, first: int, participants: Sequence[int]) -> Memory:
        """What the k-th round changed, whose participants begin at row `first`."""
        cohort = {name: self.layout.views(rows_VP[k]) for name, rows_VP in self.cohorts.items()}
        if self.clients is None:
            return Memory(cohort)
        rows = self.clients[first : first + len(participants)]
        # Copies: a client may keep its row for long, and must not keep the others' of this round alive.
        return Memory(cohort, {c: self.layout.views(row.clone()) for c, row in zip(participants, rows, strict=True)})
