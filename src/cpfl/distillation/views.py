"""What of the public set the student sees, epoch by epoch, and the targets that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl.data.transform import NOWHERE, PAD, draw_plan
from cpfl.distillation.shards import Shards
from cpfl.distillation.targets import Chunks, Numbers, Teachers, joined
from cpfl.experiment import Distillation
from cpfl.problem import Problem
from cpfl.randomness import stream


class Views:
    """Public images as the student sees them, and the targets that belong to what it sees.

    paper:       targets once, on one view of each image; the student sees a new view in every epoch.
    consistent:  student and teachers see the same views, `views` of them in turn.
    """

    def __init__(
        self,
        problem: Problem,
        modules: Sequence[nn.Module],
        teachers: Teachers,
        weights_NC: NDArray[np.float64],
        settings: Distillation,
        numbers: Numbers,
        shards: Shards | None = None,  # others make the targets
    ) -> None:
        self._data, self._seed, self._settings, self._numbers = (
            problem.data,
            problem.experiment.seed,
            settings,
            numbers,
        )
        self._modules, self._teachers, self._weights, self._shards = modules, teachers, weights_NC, shards
        own = problem.experiment.data.augment  # of the training images
        self._augment: str = own if settings.augment == "training" else settings.augment
        self._x = torch.as_tensor(problem.data.public.x).to(numbers.device)
        self._known: dict[int, Tensor] = {}  # targets by view
        self._targets: Tensor | None = None  # of this epoch, always in the same place: a captured graph reads it
        self._plan: Tensor | None = None

    def begin(self, epoch: int) -> None:
        """Make the views and targets of this epoch ready."""
        if self._settings.recipe == "paper":
            seen, labelled = epoch + 1, 0
        else:
            seen = labelled = epoch % self._settings.views
        if labelled not in self._known:
            self._known[labelled] = self._targets_of(labelled)
        self._targets = _same_place(self._targets, self._known[labelled])
        if self._augment != "none":
            self._plan = _same_place(self._plan, self._drawn(seen))

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The student's inputs and targets for these rows."""
        assert self._targets is not None, "an epoch has begun"
        return self._inputs(rows, self._plan), self._targets[rows]

    def _inputs(self, rows: Tensor | slice, plan: Tensor | None) -> Tensor:
        return self._data.public_transform(self._x[rows], None if plan is None else plan[rows])

    def _drawn(self, view: int) -> Tensor:
        plan = draw_plan(stream(self._seed, "view", view), len(self._x), self._data.train.shape)
        if self._augment in ("crop-flip", "mirror"):
            plan[:, 3:] = NOWHERE
        if self._augment == "mirror":
            plan[:, :2], plan[:, 2] = PAD, view % 2
        return torch.from_numpy(plan).to(self._numbers.device)

    def _targets_of(self, view: int) -> Tensor:
        if self._shards is None:
            return self.joined(view, 0, len(self._x))
        return self._shards.joined(view, len(self._x), self._numbers.device)

    def joined(self, view: int, first: int, last: int) -> Tensor:
        """The targets of these samples as a view shows them."""
        plan = None if self._augment == "none" else self._drawn(view)
        inputs = Chunks(
            last - first, lambda rows: self._inputs(slice(first + rows.start, first + rows.stop), plan), self._numbers
        )
        return joined(self._modules, self._teachers(), self._weights, inputs, self._settings)


def _same_place(held: Tensor | None, value: Tensor) -> Tensor:
    return value.clone() if held is None else held.copy_(value)
