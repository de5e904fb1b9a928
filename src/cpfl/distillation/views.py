"""What of the public set the student sees, epoch by epoch, and the targets that belong to it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl import models
from cpfl.data.transform import NOWHERE, PAD, draw_augmentation, draw_mix, paste
from cpfl.distillation.ensemble import Chunks, Ensemble, Precision, TeacherStates
from cpfl.engines.base import Engine
from cpfl.models import State
from cpfl.models.adapter import Inputs
from cpfl.objectives.links import fitting_temperature
from cpfl.randomness import stream
from cpfl.settings import Distillation
from cpfl.task.task import Task

SHARD_UNIT = 1024  # samples that stay together: whole forward passes on a CPU, so that shards change no bit there


class Views:
    """Public samples as the student sees them, and the targets that belong to what it sees.

    Student and teachers see the same `views` views alternately. Without `same_views`, as in the paper, targets are made
    once, on one view of each sample, and the student sees a new view in every epoch.
    """

    def __init__(
        self,
        task: Task,
        ensemble: Ensemble,
        teachers: TeacherStates,
        settings: Distillation,
        workers: Engine | None = None,  # an engine whose workers compute the targets, in shards as the paper proposes
    ) -> None:
        self._data, self._seed, self._settings, self._workers = task.data, task.experiment.seed, settings, workers
        layouts = map(task.layout, ensemble.cohorts)
        arrays = (models.to_arrays(one.sent(state)) for one, state in zip(layouts, teachers(), strict=True))
        self._shared = workers.share(arrays) if workers else []
        self._ensemble, self._teachers, self._device = ensemble, teachers, ensemble.precision.device
        self._augment = augmentation(settings, task.experiment.data.augment)
        self._views = labelled_views(settings, task.experiment.data.augment)
        self._x = torch.as_tensor(task.data.public.x).to(self._device)
        self._known: dict[int, Tensor] = {}  # targets by view
        self._temperature: float | None = None
        # Of this epoch, always in the same memory: a captured graph reads it.
        self._targets: Tensor | None = None
        self._plan: Tensor | None = None
        self._mix: Tensor | None = None

    def begin(self, epoch: int) -> None:
        """Make the views and targets of this epoch ready."""
        seen = labelled = epoch % self._views
        if not self._settings.same_views:
            seen, labelled = epoch + 1, 0
        if labelled not in self._known:
            self._known[labelled] = self._targets_of(labelled)
        self._targets = _in_place(self._targets, self._known[labelled])
        plan, mix = self._drawn(seen)
        self._plan, self._mix = _in_place(self._plan, plan), _in_place(self._mix, mix)

    def batch(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """The student's inputs and targets for these rows of the public set."""
        assert self._targets is not None, "an epoch has begun"
        return self._inputs(rows, self._plan, self._mix), self._targets[rows]

    def targets(self, view: int, first: int, last: int) -> Tensor:
        """The teachers' targets z̃ for these samples as a view shows them."""
        plan, mix = self._drawn(view)

        def inputs(rows: slice) -> Any:
            return self._inputs(slice(first + rows.start, first + rows.stop), plan, mix)

        shown = [inputs]
        if self._settings.flip_average and self._augment != "none":
            shown.append(lambda rows: inputs(rows).flip(-1))
        chunks = [
            Chunks(last - first, each, self._ensemble.precision, (self._augment, view, flip, first, last))
            for flip, each in enumerate(shown)
        ]
        return self._ensemble(self._teachers(), *chunks)

    def _targets_of(self, view: int) -> Tensor:
        found = self._from_workers(view, self._workers) if self._workers else self.targets(view, 0, len(self._x))
        if not (self._ensemble.aggregation.probabilities and self._settings.target_entropy):
            return found
        link = self._ensemble.aggregation.link
        if self._temperature is None:  # one for all views
            self._temperature = fitting_temperature(link, found, self._settings.target_entropy)
        return link.sharpened(found, self._temperature)

    def _from_workers(self, view: int, workers: Engine) -> Tensor:
        count, unit = len(self._x), workers.width * SHARD_UNIT
        size = -(-count // unit) * SHARD_UNIT  # shards of about equal size, each of whole forward passes
        pieces = [(view, first, min(first + size, count)) for first in range(0, count, size)]
        job = partial(shard_targets, self._ensemble.cohorts, self._ensemble.weights_NC, self._settings)
        return torch.from_numpy(np.concatenate(workers.spread(job, self._shared, pieces))).to(self._device)

    def _inputs(self, rows: Tensor | slice, plan: Tensor | None, mix: Tensor | None) -> Any:
        inputs = self._data.public_transform(self._x[rows], None if plan is None else plan[rows])
        if mix is None:
            return inputs
        return paste(inputs, self._inputs(mix[rows, 0], plan, None), mix[rows])

    def _drawn(self, view: int) -> tuple[Tensor | None, Tensor | None]:
        """How each image is cropped and flipped, and in every second view which square comes from another image."""
        if self._augment == "none":
            return None, None
        rng, shape = stream(self._seed, "view", view), self._data.train.shape
        plan = draw_augmentation(rng, len(self._x), shape)
        if self._augment != "crop-flip-cutout":
            plan[:, 3:] = NOWHERE
        if self._augment == "flip":
            plan[:, :2], plan[:, 2] = PAD, view % 2
        if self._augment != "cutmix":
            return torch.from_numpy(plan).to(self._device), None
        mix = draw_mix(rng, len(self._x), shape)
        mix[:, 3] *= view % 2
        return torch.from_numpy(plan).to(self._device), torch.from_numpy(mix).to(self._device)


def shard_targets(
    cohorts: Sequence[int],
    weights_NC: NDArray[np.float64],
    settings: Distillation,
    task: Task,
    device: torch.device,
    shared: Callable[[], Iterator[Any]],  # the teachers' models as arrays, without what is frozen
    piece: tuple[int, int, int],
) -> NDArray[Any]:
    """The targets of a piece of the public set: (view, first sample, last sample); runs on workers."""
    models.choose_arithmetic(task.experiment.precision)
    ensemble = Ensemble(task, cohorts, settings, Precision(device, task.experiment.precision), weights_NC)

    def teachers() -> Iterator[State]:
        for cohort, arrays in zip(cohorts, shared(), strict=True):
            yield task.layout(cohort).received(models.from_arrays(arrays))

    views = Views(task, ensemble, teachers, settings)
    return views.targets(*piece).cpu().numpy()


def labelled_views(settings: Distillation, of_training: str) -> int:
    """Number of views for which the teachers compute targets."""
    return 1 if augmentation(settings, of_training) == "none" or not settings.same_views else settings.views


def augmentation(settings: Distillation, of_training: str) -> str:
    """The augmentation of views, with auto and training resolved."""
    if settings.augment == "auto":
        return "none" if of_training == "none" else "cutmix"
    return of_training if settings.augment == "training" else settings.augment


def _in_place(held: Tensor | None, value: Tensor | None) -> Tensor | None:
    if held is None or value is None:
        return value if value is None else value.clone()
    return held.copy_(value)
