"""All tensors that lanes keep on the device, and the way of small arrays to it and back.

Whatever a captured graph reads keeps its address for life: tensors are made once and only written into.
Axes: M clients and N cohorts, of all runs that share the lanes; S slots for clients' models that are aggregated
together, V models evaluated together, F staged clients, P parameters, Q running statistics of BatchNorm. Row M, N or S
is for entries that stay empty.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.engines.lanes.local_batch_norm import LocalBatchNorm
from cpfl.engines.lanes.member import (
    Member,
    Rows,
    ServerKey,
    Space,
    common_rate,
    has_squared_losses,
    largest_batch,
    server_key,
)
from cpfl.engines.lanes.model import LaneModel
from cpfl.federation import optimizers
from cpfl.federation.messages import CLIENT_STATE_MEAN
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.federation.session import Session
from cpfl.models import batch_norm
from cpfl.models.adapter import Inputs, mapped
from cpfl.models.layout import Layout
from cpfl.settings import Federation
from cpfl.task.task import Task

ALIGNMENT = 16  # bytes; every type can be viewed from such an address
COPIES = 64  # of a staging buffer that may be on their way at a time


class DeviceBuffers:
    """What all lanes share: the samples, the model's layout, and every cohort's model and running sum."""

    def __init__(
        self, tasks: Sequence[Task], device: torch.device, rows: Rows, others: Sequence[Federation] = ()
    ) -> None:
        """For tasks of the same samples and model, and for others like them, with these settings, that come later:
        as many at a time as `rows` hold."""
        self.task = task = tasks[0]  # where all are the same, any will do
        data, experiment = task.data, task.experiment
        self.x, self.y = (torch.as_tensor(values).to(device) for values in (data.train.x, data.train.y))
        self.model = LaneModel(task, device)
        self.device, self.layout, self.dtype = device, self.model.layout, data.transform.dtype
        self.models_NP = torch.zeros(rows.cohorts + 1, self.layout.size, dtype=self.dtype, device=device)
        self.sums_NP = torch.zeros_like(self.models_NP)
        self.stats_NQ = self.models_NP.new_zeros(len(self.models_NP), self.model.stats.layout.size)
        self.stats_sums_NQ = torch.zeros_like(self.stats_NQ)
        self.losses_M = torch.zeros(rows.clients + 1, dtype=self.dtype, device=device)
        settings = [*(task.experiment.federation for task in tasks), *others]
        self.has_squared_losses = has_squared_losses(settings)
        self.rate, self.batch = common_rate(settings), max(map(largest_batch, tasks))
        self.squared_losses_M = torch.zeros_like(self.losses_M)
        self.algorithm = AlgorithmBuffers(self.layout, self.dtype, device, rows, settings)
        local = batch_norm.local_names(experiment.federation, self.model.module)
        self.local = LocalBatchNorm(task, self.model, local, rows.clients, device) if local else None
        self._numbers: Iterator[int] = count()
        self._spaces = Space(rows.cohorts), Space(rows.clients), Space(rows.models)

    def admit(self, task: Task) -> Member | None:
        """Rows for a run; None: there is no room for it now."""
        wanted, firsts = vars(Rows.of(task)).values(), list[int]()
        for space, size in zip(self._spaces, wanted, strict=True):
            first = space.take(size)
            if first is None:
                for taken, start, rows in zip(self._spaces, firsts, wanted, strict=False):
                    taken.give_back(start, rows)
                return None
            firsts.append(first)
        return Member(next(self._numbers), task, Rows(*firsts))

    def release(self, member: Member) -> None:
        """Make room for another run."""
        sizes = vars(Rows.of(member.task)).values()
        for space, first, size in zip(self._spaces, vars(member.first).values(), sizes, strict=True):
            space.give_back(first, size)

    def load(self, member: Member, sessions: Sequence[Session]) -> None:
        """Start from the state of these sessions, all of one run."""
        for session in sessions:
            row = member.cohort_row(session)
            self.models_NP[row] = self.layout.row(session.model, self.device)
            self.stats_NQ[row] = self.model.stats.row(session.model, self.device)
            for rows in (self.sums_NP, self.stats_sums_NQ):
                rows[row].zero_()
        self.algorithm.load(member, sessions)
        if self.local is not None:
            self.local.load(member, sessions)

    def samples(self, staged: dict[str, Tensor]) -> tuple[Inputs, Tensor]:
        """Model inputs and labels for staged rows; empty rows give some sample that the caller masks."""
        rows, augmentation = staged["rows"], staged.get("augmentation")
        flat = rows.reshape(-1).long().clamp(min=0)  # long: positions in millions of images are beyond 32 bits
        plan = None if augmentation is None else augmentation.reshape(-1, augmentation.shape[-1]).long()
        x = self.task.data.transform(self.x[flat], plan)
        return mapped(lambda each: each.reshape(*rows.shape, *each.shape[1:]), x), self.y[rows.long().clamp(min=0)]


class ServerBuffers:
    """A server optimizer, and what it remembers of each cohort."""

    def __init__(self, settings: Federation, zeros_NP: Tensor) -> None:
        self.optimizer = optimizers.server_optimizer(settings)
        self.rows_NP = {name: torch.zeros_like(zeros_NP) for name in self.optimizer.buffers}


class AlgorithmBuffers:
    """What the client and server optimizers remember from round to round; rows that they do not need are missing."""

    def __init__(
        self, layout: Layout, dtype: torch.dtype, device: torch.device, rows: Rows, settings: Sequence[Federation]
    ) -> None:
        """`settings` are of all runs, and differ in no more than the server's sums."""
        first = settings[0]
        self.client, self.server = optimizers.client_optimizer(first), optimizers.server_optimizer(first)
        self._layout, self._device = layout, device
        self.clips = type(self.server).clip_update is not ServerOptimizer.clip_update or first.max_update_norm > 0
        # Rules for updates of different staleness must see all of them.
        self.stale = bool(first.mixes_ages)
        self.needs_all_models = self.stale or self.server.needs_all_models

        def table(count: int, needed: bool) -> Tensor:
            return torch.zeros(count + 1 if needed else 0, layout.size, dtype=dtype, device=device)

        self.client_states_MP = table(rows.clients, self.client.has_client_state)
        self.means_NP = table(rows.cohorts, self.client.has_client_state)  # of the client states
        self.changes_NP = table(rows.cohorts, self.client.has_client_state)  # of the client states in a round, summed
        self.models_SP = table(rows.models, self.needs_all_models)  # of clients that have ended
        self.empty_model = rows.models
        zeros_NP = torch.zeros(1, 1, dtype=dtype, device=device).expand(rows.cohorts + 1, layout.size)
        self.servers: dict[ServerKey, ServerBuffers] = {}
        for one in settings:
            if server_key(one) not in self.servers:
                self.servers[server_key(one)] = ServerBuffers(one, zeros_NP)

    def cohort_rows(self, key: ServerKey) -> dict[str, Tensor]:
        """All that a cohort with this server keeps, by name."""
        means = {CLIENT_STATE_MEAN: self.means_NP} if self.client.has_client_state else {}
        return {**self.servers[key].rows_NP, **means}

    def load(self, member: Member, sessions: Sequence[Session]) -> None:
        """Start from the state of these sessions."""
        server, tables = self.servers[member.server_key], self.cohort_rows(member.server_key)
        if self.client.has_client_state:
            first = member.first.clients
            self.client_states_MP[first : first + member.task.experiment.clients].zero_()
        for session in sessions:
            row, state = member.cohort_row(session), session.algorithm_state
            if self.client.has_client_state:
                self.means_NP[row].zero_()
                self.changes_NP[row].zero_()
            for name, rows_NP in server.rows_NP.items():
                rows_NP[row].fill_(server.optimizer.initial_value(name))
            for name, kept in state.cohort.items():
                tables[name][row] = self._layout.row(kept, self._device)
            for client, own in state.clients.items() if self.client.has_client_state else ():
                self.client_states_MP[member.client_row(client)] = self._layout.row(own, self._device)


class StagingBuffer:
    """Named arrays that the host fills and sends in one copy; a captured graph reads them at a fixed address.

    Several copies may be on their way; the host waits when all are.
    """

    def __init__(self, device: torch.device, **arrays: tuple[tuple[int, ...], torch.dtype]) -> None:
        parts, size = {}, 0
        for name, (shape, dtype) in arrays.items():
            end = size + math.prod(shape) * dtype.itemsize
            parts[name] = (slice(size, end), shape, dtype)
            size = -(-end // ALIGNMENT) * ALIGNMENT

        def views(memory: Tensor) -> dict[str, Tensor]:
            return {name: memory[part].view(dtype).view(shape) for name, (part, shape, dtype) in parts.items()}

        pin = device.type == "cuda"
        self._sources = [torch.zeros(size, dtype=torch.uint8, pin_memory=pin) for _ in range(COPIES if pin else 1)]
        self._target = torch.zeros(size, dtype=torch.uint8, device=device)
        self._arrays: list[dict[str, NDArray[np.generic]]] = [
            {name: view.numpy() for name, view in views(source).items()} for source in self._sources
        ]
        self._next = 0
        self._sent = [torch.cuda.Event() for _ in self._sources] if pin else []  # type: ignore[no-untyped-call]
        self.device = views(self._target)

    @property
    def host(self) -> dict[str, NDArray[np.generic]]:
        """The arrays to fill before the next `send`."""
        return self._arrays[self._next]

    def send(self) -> None:
        """Copy the host's arrays to the device; `host` is another set of arrays now."""
        self._target.copy_(self._sources[self._next], non_blocking=True)
        if self._sent:
            self._sent[self._next].record()
            self._next = (self._next + 1) % len(self._sources)
            self._sent[self._next].synchronize()  # at once, if nothing was sent from there


def upload(device: torch.device, numbers: Sequence[int]) -> Tensor:
    """Numbers as a tensor on the device. Torch reuses pinned memory once the copy is done."""
    host = torch.tensor(numbers)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def download(values: Tensor) -> Tensor:
    """A copy on the host, complete once the device has reached this point."""
    if values.device.type != "cuda":
        return values.clone()
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return target.copy_(values, non_blocking=True)
