"""What of the public set the student sees, epoch by epoch, and the targets that belong to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl.data.transform import NOWHERE, PAD, draw_mix, draw_plan, paste
from cpfl.distillation.shards import Shards
from cpfl.distillation.targets import Chunks, Numbers, Teachers, fitting_heat, joined, sharpened
from cpfl.experiment import Distillation
from cpfl.problem import Problem
from cpfl.randomness import stream


class Views:
    """Public images as the student sees them, and the targets that belong to what it sees.

    Student and teachers see the same views, `views` of them in turn; without `same_views`, as in the paper, targets are
    made once, on one view of each image, and the student sees a new view in every epoch.
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
        self._augment = augmentation(settings, problem.experiment.data.augment)
        self._views = labelled(settings, problem.experiment.data.augment)
        self._mirrored = settings.mirrored and self._augment != "none"
        self._x = torch.as_tensor(problem.data.public.x).to(numbers.device)
        self._known: dict[int, Tensor] = {}  # targets by view
        self._heat: float | None = None
        self._targets: Tensor | None = None  # of this epoch, always in the same place: a captured graph reads it
        self._plan: Tensor | None = None
        self._mix: Tensor | None = None

    def begin(self, epoch: int) -> None:
        """Make the views and targets of this epoch ready."""
        seen = labelled = epoch % self._views
        if not self._settings.same_views:
            seen, labelled = epoch + 1, 0
        if labelled not in self._known:
            self._known[labelled] = self._targets_of(labelled)
        self._targets = _same_place(self._targets, self._known[labelled])
        plan, mix = self._drawn(seen)
        if plan is not None:
            self._plan = _same_place(self._plan, plan)
        if mix is not None:
            self._mix = _same_place(self._mix, mix)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The student's inputs and targets for these rows."""
        assert self._targets is not None, "an epoch has begun"
        return self._inputs(rows, self._plan, self._mix), self._targets[rows]

    def _inputs(self, rows: Tensor | slice, plan: Tensor | None, mix: Tensor | None) -> Tensor:
        inputs = self._data.public_transform(self._x[rows], None if plan is None else plan[rows])
        if mix is None:
            return inputs
        return paste(inputs, self._inputs(mix[rows, 0], plan, None), mix[rows])

    def _drawn(self, view: int) -> tuple[Tensor | None, Tensor | None]:
        """How each image is cropped and mirrored, and which squares come from others: in every second view."""
        if self._augment == "none":
            return None, None
        rng, shape, device = stream(self._seed, "view", view), self._data.train.shape, self._numbers.device
        plan = draw_plan(rng, len(self._x), shape)
        if self._augment != "crop-flip-cutout":
            plan[:, 3:] = NOWHERE
        if self._augment == "mirror":
            plan[:, :2], plan[:, 2] = PAD, view % 2
        if self._augment != "cut-mix":
            return torch.from_numpy(plan).to(device), None
        mix = draw_mix(rng, len(self._x), shape)
        mix[:, 3] *= view % 2
        return torch.from_numpy(plan).to(device), torch.from_numpy(mix).to(device)

    def joined(self, view: int, first: int, last: int) -> Tensor:
        """What the teachers say of these samples as a view shows them."""
        plan, mix = self._drawn(view)

        def shown(rows: slice) -> Tensor:
            return self._inputs(slice(first + rows.start, first + rows.stop), plan, mix)

        looks = [shown, lambda rows: shown(rows).flip(-1)] if self._mirrored else [shown]
        inputs = [Chunks(last - first, look, self._numbers) for look in looks]
        return joined(self._modules, self._teachers(), self._weights, inputs, self._settings)

    def _targets_of(self, view: int) -> Tensor:
        if self._shards is None:
            found = self.joined(view, 0, len(self._x))
        else:
            found = self._shards.joined(view, len(self._x), self._numbers.device)
        if self._settings.join != "probabilities" or not self._settings.sharpen:
            return found
        if self._heat is None:  # one for all views
            self._heat = fitting_heat(found, self._settings.sharpen)
        return sharpened(found, self._heat)


def labelled(settings: Distillation, of_training: str) -> int:
    """Views that the teachers look at."""
    return 1 if augmentation(settings, of_training) == "none" or not settings.same_views else settings.views


def augmentation(settings: Distillation, of_training: str) -> str:
    """How views are augmented, after all."""
    if settings.augment == "auto":
        return "none" if of_training == "none" else "cut-mix"
    return of_training if settings.augment == "training" else settings.augment


def _same_place(held: Tensor | None, value: Tensor) -> Tensor:
    return value.clone() if held is None else held.copy_(value)
