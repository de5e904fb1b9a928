"""Models in memory that the worker processes share.

Axes: K rows, P floats of a model, Q integers (counters, such as BatchNorm's), M clients, N cohorts, S slots of results.
"""

import mmap
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.models import State
from cpfl.models.layout import Layout
from cpfl.task.task import Task


@dataclass
class ModelRow:
    """One model as a row of floats and a row of integers."""

    layout: Layout
    floats_P: Tensor
    integers_Q: Tensor

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

    def copy_from(self, other: "ModelRow") -> None:
        """Become the other model."""
        self.floats_P.copy_(other.floats_P)
        self.integers_Q.copy_(other.integers_Q)

    def clone(self) -> "ModelRow":
        """A copy in memory of its own."""
        return replace(self, floats_P=self.floats_P.clone(), integers_Q=self.integers_Q.clone())


@dataclass(frozen=True)
class ClientStates:
    """Shared rows of a client optimizer's per-client state, which has the size of the parameters."""

    clients_MP: Tensor
    means_NP: Tensor  # over the clients of each cohort
    new_SP: Tensor  # of clients that have trained, by slot


def model_rows(task: Task, layout: Layout, count: int) -> list[ModelRow]:
    """So many models in shared memory."""
    floats = shared(count, layout.size + sum(s.numel() for s in layout.others.values()), task.data.transform.dtype)
    integers = shared(count, sum(shape.numel() for shape in layout.integers.values()), torch.int64)
    return [ModelRow(layout, *rows) for rows in zip(floats, integers, strict=True)]


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
