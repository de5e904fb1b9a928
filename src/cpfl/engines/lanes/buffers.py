"""All tensors that lanes keep on the device, and the way of small arrays to it and back.

Whatever a captured graph reads keeps its address for life: tensors are made once and only written into.
Axes: M clients, N cohorts, S slots for clients' models that are aggregated together, V models evaluated together,
F staged clients, P parameters, Q running statistics of BatchNorm. Row M, N or S is for entries that stay empty.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.engines.lanes.local_batch_norm import LocalBatchNorm
from cpfl.engines.lanes.model import LaneModel
from cpfl.federation import optimizers
from cpfl.federation.messages import CLIENT_STATE_MEAN
from cpfl.federation.optimizers.base import ServerOptimizer
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.models import batch_norm
from cpfl.models.adapter import Inputs, mapped
from cpfl.models.layout import Layout
from cpfl.settings.choices import SELECTIONS
from cpfl.task.task import Task

ALIGNMENT = 16  # bytes; every type can be viewed from such an address
COPIES = 64  # of a staging buffer that may be on their way at a time


class DeviceBuffers:
    """What all lanes share: the samples, the model's layout, and every cohort's model and running sum."""

    def __init__(self, task: Task, device: torch.device) -> None:
        data, experiment = task.data, task.experiment
        self.x, self.y = (torch.as_tensor(values).to(device) for values in (data.train.x, data.train.y))
        self.model = LaneModel(task, device)
        self.device, self.task, self.layout, self.dtype = device, task, self.model.layout, data.transform.dtype
        self.models_NP = torch.zeros(experiment.cohorts + 1, self.layout.size, dtype=self.dtype, device=device)
        self.sums_NP = torch.zeros_like(self.models_NP)
        self.stats_NQ = self.models_NP.new_zeros(len(self.models_NP), self.model.stats.layout.size)
        self.stats_sums_NQ = torch.zeros_like(self.stats_NQ)
        self.losses_M = torch.zeros(experiment.clients + 1, dtype=self.dtype, device=device)
        self.has_squared_losses = SELECTIONS.find(experiment.federation.selection).squared_losses
        self.squared_losses_M = torch.zeros_like(self.losses_M)
        self.algorithm = AlgorithmBuffers(task, self.layout, device)
        local = batch_norm.local_names(experiment.federation, self.model.module)
        self.local = LocalBatchNorm(task, self.model, local, device) if local else None

    def samples(self, staged: dict[str, Tensor]) -> tuple[Inputs, Tensor]:
        """Model inputs and labels for staged rows; empty rows give some sample that the caller masks."""
        rows, augmentation = staged["rows"], staged.get("augmentation")
        flat = rows.reshape(-1).long().clamp(min=0)  # long: positions in millions of images are beyond 32 bits
        plan = None if augmentation is None else augmentation.reshape(-1, augmentation.shape[-1]).long()
        x = self.task.data.transform(self.x[flat], plan)
        return mapped(lambda each: each.reshape(*rows.shape, *each.shape[1:]), x), self.y[rows.long().clamp(min=0)]


class AlgorithmBuffers:
    """What the client and server optimizers remember from round to round; rows that they do not need are missing."""

    def __init__(self, task: Task, layout: Layout, device: torch.device) -> None:
        experiment, settings, dtype = task.experiment, task.experiment.federation, task.data.transform.dtype
        self.client, self.server = optimizers.client_optimizer(settings), optimizers.server_optimizer(settings)
        self._layout, self._device = layout, device
        self.clips = type(self.server).clip_update is not ServerOptimizer.clip_update or settings.max_update_norm > 0
        # Rules for updates of different staleness must see all of them.
        self.stale = bool(settings.mixes_ages)
        self.needs_all_models = self.stale or self.server.needs_all_models
        clients, cohorts = experiment.clients + 1, experiment.cohorts + 1

        def rows(count: int, needed: bool) -> Tensor:
            return torch.zeros(count if needed else 0, layout.size, dtype=dtype, device=device)

        self.client_states_MP = rows(clients, self.client.has_client_state)
        self.means_NP = rows(cohorts, self.client.has_client_state)  # of the client states
        self.changes_NP = rows(cohorts, self.client.has_client_state)  # of the client states in a round, summed
        # The first slot of every cohort, and the one after the last.
        self.slots = np.cumsum([0, *(_round_clients(task, len(cohort)) for cohort in task.cohorts)])
        self.models_SP = rows(int(self.slots[-1]) + 1, self.needs_all_models)  # of clients that have ended
        self.server_NP = {name: rows(cohorts, True) for name in self.server.buffers}
        means = {CLIENT_STATE_MEAN: self.means_NP} if self.client.has_client_state else {}
        self.cohort_NP = {**self.server_NP, **means}  # all that a cohort keeps

    def load(self, sessions: Sequence[Session]) -> None:
        """Start from the state of these sessions; the first one has cohort slot 0."""
        for rows in (self.client_states_MP, self.means_NP, self.changes_NP):
            rows.zero_()
        for name, rows in self.server_NP.items():
            rows.fill_(self.server.initial_value(name))
        for slot, session in enumerate(sessions):
            for name, state in session.algorithm_state.cohort.items():
                self.cohort_NP[name][slot] = self._layout.row(state, self._device)
            for client, state in session.algorithm_state.clients.items() if self.client.has_client_state else ():
                self.client_states_MP[client] = self._layout.row(state, self._device)


def _round_clients(task: Task, clients: int) -> int:
    """The most clients whose models one round of a cohort may aggregate."""
    settings = task.experiment.federation
    if settings.straggler_policy == "stale":  # those of all earlier rounds may arrive at once
        return clients
    return min(clients, settings.buffer_size or participants_per_round(settings, clients))


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
