"""Models in memory that the worker processes share. Axes: P trained parameters."""

import mmap
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.federation import optimizers
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task


@dataclass
class ModelRow:
    """One model: its trained parameters as a row, and its other tensors."""

    layout: Layout
    parameters_P: Tensor
    others: State  # buffers, second names and frozen parameters
    state_P: Tensor  # of the client optimizer: a client's, or the mean of a cohort's; empty if it has none

    @cached_property
    def tensors(self) -> State:
        """The model's tensors, sharing its memory."""
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

    def copy_from(self, other: "ModelRow") -> None:
        """Become the other model; the client optimizer's state stays."""
        self.parameters_P.copy_(other.parameters_P)
        for name, value in self.others.items():
            value.copy_(other.others[name])

    def clone(self) -> "ModelRow":
        """A copy in memory of its own."""
        others = {name: value.clone() for name, value in self.others.items()}
        return ModelRow(self.layout, self.parameters_P.clone(), others, self.state_P.clone())


def model_rows(task: Task, layout: Layout, count: int) -> list[ModelRow]:
    """So many models in shared memory."""
    dtype, optimizer = task.data.transform.dtype, optimizers.client_optimizer(task.experiment.federation)
    others = {
        name: layout.view(shared(count, value.numel(), value.dtype), value.shape)
        for name, value in task.start.items()
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
    inputs = layout.arranged(data.transform(torch.as_tensor(data.train.x[:2])))
    return layout if models.takes(module, inputs) else replace(layout, channels_last=False)


def bind(module: nn.Module, row: ModelRow) -> None:
    """Make a module's parameters those of a row."""
    for name, value in module.named_parameters():
        value.data = row.tensors[name]
