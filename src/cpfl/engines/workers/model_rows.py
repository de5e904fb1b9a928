"""Models in memory that the worker processes share.

Axes: P floats of a model, Q integers (counters, such as BatchNorm's).
"""

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
    """One model as a row of floats and a row of integers."""

    layout: Layout
    floats_P: Tensor
    integers_Q: Tensor
    state_P: Tensor  # of the client optimizer: a client's, or the mean of a cohort's; empty if it has none

    @cached_property
    def tensors(self) -> State:
        """The model's tensors, sharing its memory; integers may be of another type than the model's."""
        return self.layout.views(self.floats_P) | self.layout.integer_views(self.integers_Q)

    @property
    def parameters_P(self) -> Tensor:
        """The trained parameters, sharing its memory."""
        return self.floats_P[: self.layout.size]

    def write(self, state: State) -> None:
        """Copy a model's state into the rows."""
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
        self.floats_P.copy_(other.floats_P)
        self.integers_Q.copy_(other.integers_Q)

    def clone(self) -> "ModelRow":
        """A copy in memory of its own."""
        return ModelRow(self.layout, self.floats_P.clone(), self.integers_Q.clone(), self.state_P.clone())


def model_rows(task: Task, layout: Layout, count: int) -> list[ModelRow]:
    """So many models in shared memory."""
    dtype, optimizer = task.data.transform.dtype, optimizers.client_optimizer(task.experiment.federation)
    floats = shared(count, layout.size + sum(shape.numel() for shape in layout.others.values()), dtype)
    integers = shared(count, sum(shape.numel() for shape in layout.integers.values()), torch.int64)
    states = shared(count, layout.size if optimizer.has_client_state else 0, dtype)
    return [ModelRow(layout, *rows) for rows in zip(floats, integers, states, strict=True)]


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
