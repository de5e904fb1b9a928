"""The samples behind the bound: of the clients, which are the source domains, and of the target domain.

The run's test set stands for the target: one half of it trains (domain classifiers, joint models), the other half
measures. A client's training samples are split into two halves, of which each trains once and measures once.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from cpfl.bounds.risk import Losses, counted, losses, with_classes
from cpfl.data.samples import Samples
from cpfl.data.split import Index
from cpfl.distillation.ensemble import Chunks, Precision, logits_of
from cpfl.errors import DataError
from cpfl.models.adapter import Inputs, tensors
from cpfl.randomness import stream
from cpfl.task.task import Task

FOLDS = (0, 1)  # which half of a client's samples trains


class Domain:
    """Labelled samples on the device, by position."""

    def __init__(self, samples: Samples, task: Task, precision: Precision) -> None:
        assert samples.y is not None, "labels were checked"
        self._transform, self._precision = task.data.transform, precision
        self._objective = with_classes(task.data.objective, task.experiment.model.objective)
        self._x, self._y = (torch.as_tensor(values).to(precision.device) for values in (samples.x, samples.y))
        self.counted = counted(self._objective, samples.y)  # by position

    def inputs(self, rows: Index) -> Inputs:
        """Model inputs of these samples."""
        found: Inputs = self._transform(self._x[self._on_device(rows)])
        return found

    def labels(self, rows: Index) -> Tensor:
        """Their labels."""
        return self._y[self._on_device(rows)]

    def answers(self, module: nn.Module, rows: Index) -> Tensor:
        """What a model answers to these samples."""
        return logits_of(module, Chunks(len(rows), lambda part: self.inputs(rows[part]), self._precision))

    def losses(self, module: nn.Module, rows: Index) -> Losses:
        """A model's 0-1 loss on each of these samples."""
        return losses(self._objective, self.answers(module, rows), self.labels(rows))

    def _on_device(self, rows: Index) -> Tensor:
        return torch.from_numpy(rows).to(self._precision.device)


class Domains:
    """All sources and the target of a task."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self.task, self.precision = task, precision
        self.source, self.target = (Domain(s, task, precision) for s in (task.data.train, task.data.test))
        held = np.flatnonzero(self.target.counted)
        if len(held) < len(FOLDS):
            raise DataError(f"the test set has {len(held)} sample with a label: the bound needs two or more")
        found = [own.training[self.source.counted[own.training]] for own in task.data.clients]
        if empty := [client for client, rows in enumerate(found) if not len(rows)]:
            raise DataError(f"client {empty[0]} has no training sample with a label: the bound needs one")
        self.clients: list[Index] = found  # the training samples of each
        order = stream(task.experiment.seed, "target").permutation(held)
        self.test: Index = held  # all of it
        self.target_trains, self.target_measures = np.sort(order[: len(held) // 2]), np.sort(order[len(held) // 2 :])

    @cached_property
    def halves(self) -> list[tuple[Index, Index]]:
        """Each client's samples in two halves; the second one of a single sample is empty."""
        seed = self.task.experiment.seed
        orders = [stream(seed, "half", client).permutation(rows) for client, rows in enumerate(self.clients)]
        return [(np.sort(order[: -(-len(order) // 2)]), np.sort(order[-(-len(order) // 2) :])) for order in orders]


def joined(first: Inputs, second: Inputs) -> Inputs:
    """One batch of two."""
    both = [torch.cat(pair) for pair in zip(tensors(first), tensors(second), strict=True)]
    if isinstance(first, Tensor):
        return both[0]
    return dict(zip(first, both, strict=True)) if isinstance(first, dict) else tuple(both)
