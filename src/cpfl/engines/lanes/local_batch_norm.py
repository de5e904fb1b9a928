"""BatchNorm layers that stay with clients (federation.batch_stats = "local"): a row for each client, on the device.

Axes: M clients, F staged clients, P parameters, K those of BatchNorm, Q running statistics. Row M is for entries that
stay empty.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from cpfl.engines.lanes.member import Member
from cpfl.engines.lanes.model import LaneModel
from cpfl.federation.session import Session
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task


class LocalBatchNorm:
    """What each client keeps, once it has ended a round: its parameters of BatchNorm, then its running statistics."""

    def __init__(
        self, task: Task, model: LaneModel, names: Collection[str], clients: int, device: torch.device
    ) -> None:
        whole, self._stats, self._device = model.layout, model.stats, device
        own = {name: shape for name, shape in whole.shapes.items() if name in names}
        ties = {name: first for name, first in whole.ties.items() if name in names and first in own}
        frozen = {name: value for name, value in whole.frozen.items() if name in names}
        shapes = own | model.stats.layout.shapes
        self._layout = Layout(shapes, sum(shape.numel() for shape in shapes.values()), {}, frozen, ties)
        positions = torch.arange(whole.size, device=device)
        self._columns_K = torch.cat([positions[:0], *(whole.views(positions)[name] for name in own)])
        self._rows_M = torch.zeros(clients + 1, self._layout.size, dtype=task.data.transform.dtype, device=device)
        self._known_M1 = torch.zeros(clients + 1, 1, dtype=torch.bool, device=device)

    def load(self, member: Member, sessions: Sequence[Session]) -> None:
        """Start from the state of these sessions."""
        first = member.first.clients
        self._known_M1[first : first + member.task.experiment.clients].zero_()
        for session in sessions:
            for client, state in session.algorithm_state.clients.items():
                self._rows_M[member.client_row(client)] = self._layout.row(state, self._device)
                self._known_M1[member.client_row(client)] = True

    def start(self, clients: Tensor, models_FP: Tensor, stats_FQ: Tensor) -> tuple[Tensor, Tensor]:
        """The cohorts' models and statistics, with what is known of these clients in its place."""
        known_F1, size = self._known_M1.index_select(0, clients), len(self._columns_K)
        own_FK, own_FQ = torch.split(self.rows(clients), [size, stats_FQ.shape[1]], dim=1)
        own_FK = torch.where(known_F1, own_FK, models_FP.index_select(1, self._columns_K))
        return models_FP.index_copy(1, self._columns_K, own_FK), torch.where(known_F1, own_FQ, stats_FQ)

    def keep(self, clients: Tensor, models_FP: Tensor, stats_FQ: Tensor) -> None:
        """Keep what these clients have ended with."""
        rows = torch.cat([models_FP.index_select(1, self._columns_K), stats_FQ], dim=1)
        self._rows_M.index_copy_(0, clients, rows)
        self._known_M1.index_fill_(0, clients, True)

    def rows(self, clients: Tensor) -> Tensor:
        """What these clients keep, as rows of their own."""
        return self._rows_M.index_select(0, clients)

    def state(self, row: Tensor, before: State, steps: int) -> State:
        """A row as tensors by name, with the counters after so many steps; the row must not change any more."""
        return self._layout.state(row) | self._stats.counters(before, steps)
