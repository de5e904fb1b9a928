"""The work of one process: train one client, or evaluate a model on some clients' validation samples.

The arithmetic of the reference engine in the order that is fastest on a CPU: channels last, parameters and momentum as
one row each, bf16 where the experiment says so. Models come and go in memory that the processes share. Axes: P trained
parameters.
"""

import mmap
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.engines.client_training import ClientTrainer
from cpfl.engines.workers.sequential import sequential_step
from cpfl.federation import optimizers
from cpfl.models import State
from cpfl.models.adapter import Inputs
from cpfl.models.layout import Layout
from cpfl.objectives.classes import Classification
from cpfl.task.task import Task


@dataclass(frozen=True)
class Job:
    """A client to train, or a model to evaluate on some clients' validation samples."""

    kind: Literal["train", "evaluate"]
    cohort: int
    clients: tuple[int, ...]
    round: int
    steps: int | None = None  # only so many, the first ones
    squared_losses: bool = False  # the sum of the squared sample losses is wanted
    older: bool = False  # the client starts from another model than its cohort's newest, older or with own parts


@dataclass
class ModelRow:
    """One model: its trained parameters as a row, and its buffers; frozen parameters are the module's own."""

    layout: Layout
    parameters_P: Tensor
    others: State  # buffers
    state_P: Tensor  # of the client optimizer: a client's, or the mean of a cohort's; empty if it has none

    @cached_property
    def tensors(self) -> State:
        """What differs from model to model, sharing its memory."""
        return self.layout.views(self.parameters_P) | self.others

    def write(self, state: State) -> None:
        """Copy a model's state into the row."""
        for name, value in self.tensors.items():
            value.copy_(state[name])

    def write_state(self, state: State | None) -> None:
        """Copy the client optimizer's state into its row; None: it has not begun."""
        self.state_P.zero_()
        if state is not None:
            for name, value in self.layout.views(self.state_P).items():
                value.copy_(state[name])

    def clone(self) -> "ModelRow":
        """A copy in memory of its own."""
        others = {name: value.clone() for name, value in self.others.items()}
        return ModelRow(self.layout, self.parameters_P.clone(), others, self.state_P.clone())


class Trainer(ClientTrainer):
    """A model to train with, whose parameters lie in a row, and the data."""

    def __init__(self, task: Task, layout: Layout) -> None:
        data, experiment = task.data, task.experiment
        self._row = model_rows(task, layout, 1)[0]
        self._gradients_P = torch.zeros_like(self._row.parameters_P)
        module = models.fresh(task.build, experiment.seed, "init", data.transform.dtype)
        bind(module, self._row)
        super().__init__(task, module, layout, torch.device("cpu"))
        self._sequential = None
        if not self._row.others and layout.channels_last and type(self.objective) is Classification:
            axes, low = 1 + len(data.train.shape), experiment.precision == "bf16"
            self._sequential = sequential_step(
                module, axes, self._row.parameters_P, self._gradients_P, layout.views, low
            )
        self.seeds_torch = self._sequential is None  # plain layers draw nothing

    def train_client(self, job: Job, model: ModelRow, result: ModelRow) -> tuple[float, float | None]:
        """A client's round from its cohort's model, or from the older one in `result`; the trained one goes there.

        Returns the mean loss over the steps, and the sum of the squared sample losses if wanted.
        """
        self._load(result if job.older else model)
        asked = (job.steps, job.squared_losses, result.state_P, model.state_P)
        loss, squared, state_P = self.train(job.clients[0], job.round, self._row.parameters_P, *asked)
        if state_P is not None:
            result.state_P.copy_(state_P)
        if result.others:
            result.write(self.module.state_dict())
        else:
            result.parameters_P.copy_(self._row.parameters_P)
        return loss, squared

    @torch.no_grad()
    def evaluate(self, job: Job, model: ModelRow) -> list[float]:
        """The mean validation loss of a cohort's model for each of the job's clients, all of which have samples."""
        self._load(model)
        self.module.eval()
        losses = [
            self.objective.losses(self.forward(x, job.clients[0]), y).double()
            for x, y in self.validation_samples(job.clients, job.round)
        ]
        sizes = self.task.data.clients.validation_sizes[list(job.clients)].tolist()
        return [float(values.mean()) for values in torch.split(torch.cat(losses), sizes)]

    def load(self, params_P: Tensor) -> None:
        """Nothing to do: the model's parameters are those of the row."""

    def gradient(self, x: Inputs, y: Tensor, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Without autograd where the model is a sequence of plain layers."""
        if self._sequential is None or not isinstance(x, Tensor):
            return super().gradient(x, y, client)
        return *self._sequential(x, y), self._gradients_P

    def forward(self, x: Inputs, client: int) -> Tensor:
        """In the experiment's precision."""
        with models.arithmetic(self.device, self.task.experiment.precision):
            return super().forward(x, client)

    def _load(self, model: ModelRow) -> None:
        if model.others:
            self.module.load_state_dict(model.tensors, strict=False)  # without frozen parameters and second names
        else:
            self._row.parameters_P.copy_(model.parameters_P)


def model_rows(task: Task, layout: Layout, count: int) -> list[ModelRow]:
    """So many models in shared memory."""
    dtype, optimizer = task.data.transform.dtype, optimizers.client_optimizer(task.experiment.federation)
    others = {
        name: layout.view(shared(count, value.numel(), value.dtype), value.shape)
        for name, value in layout.sent(task.start).items()
        if name not in layout.shapes
    }
    parameters = shared(count, layout.size, dtype)
    states = shared(count, layout.size if optimizer.has_client_state else 0, dtype)
    return [
        ModelRow(layout, parameters[row], {name: value[row] for name, value in others.items()}, states[row])
        for row in range(count)
    ]


def shared(count: int, size: int, dtype: torch.dtype) -> Tensor:
    """A matrix of zeros that is shared with processes forked later."""
    length = max(1, count * size) * dtype.itemsize
    memory = np.frombuffer(mmap.mmap(-1, length), np.uint8)  # anonymous: no file, no limit on such files
    return torch.from_numpy(memory)[: count * size * dtype.itemsize].view(dtype).view(count, size)


def worker_layout(task: Task) -> Layout:
    """Channels last, if the model accepts such images and can hold its own parameters so.

    By name: where a tensor lies decides how some kernels round.
    """
    data = task.data
    module = models.fresh(task.build, task.experiment.seed, "init", data.transform.dtype)
    layout = Layout.from_module(module, by_name=True, channels_last=True)
    bind(module, model_rows(task, layout, 1)[0])
    inputs = layout.arranged(data.inputs(2))
    return layout if models.takes(module, inputs) else replace(layout, channels_last=False)


def bind(module: nn.Module, row: ModelRow) -> None:
    """Make a module's trained parameters those of a row."""
    for name, value in models.trained(module).items():
        value.data = row.tensors[name]
