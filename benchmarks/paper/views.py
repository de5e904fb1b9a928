"""Other augmentations of the public images for teachers and student, tried on the teachers of finished runs.

Everything else is the recipe cpfl. The accuracy on the clients' validation samples decides.

    python benchmarks/paper/views.py --data DIR --out results/paper/views.json [--only "NAME;NAME"] RUN...
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import effects
import numpy as np
import tables
import torch
from torch import Tensor

from cpfl import method
from cpfl.data.transform import paste
from cpfl.distillation.objective import DistillationLoss, distillation_loss
from cpfl.distillation.views import Views
from cpfl.randomness import stream
from cpfl.settings import Distillation


@dataclass(frozen=True)
class Augmentation:
    """Changes of an image of a view, in addition to the recipe's."""

    side: tuple[float, float] | None = None  # a window with sides between these shares, resized
    colours: float = 0.0  # brightness and contrast change by up to this much
    blends: bool = False  # of two images, instead of squares
    everywhere: bool = False  # squares are in every view, not in every second one
    confident: bool = False  # images on which the teachers are confident get a larger weight
    settings: dict[str, Any] = field(default_factory=dict)


AUGMENTATIONS = {
    "as in cpfl": Augmentation(),
    "windows of 0.5 to 1": Augmentation(side=(0.5, 1.0)),
    "windows of 0.7 to 1": Augmentation(side=(0.7, 1.0)),
    "windows of 0.75 to 1.25": Augmentation(side=(0.75, 1.25)),
    "colours": Augmentation(colours=0.4),
    "windows of 0.5 to 1, colours": Augmentation(side=(0.5, 1.0), colours=0.4),
    "blends": Augmentation(blends=True),
    "squares in every view": Augmentation(everywhere=True),
    "sure images count more": Augmentation(confident=True),
    "6 views": Augmentation(settings={"distillation.views": 6}),
    "windows of 0.5 to 1, 6 views": Augmentation(side=(0.5, 1.0), settings={"distillation.views": 6}),
    "windows of 0.7 to 1, 6 views": Augmentation(side=(0.7, 1.0), settings={"distillation.views": 6}),
    "windows of 0.5 to 1, 6 views, 125 epochs": Augmentation(
        side=(0.5, 1.0), settings={"distillation.views": 6, "distillation.epochs": 125}
    ),
}


class AugmentedViews(Views):
    """Views with an augmentation."""

    augmentation: Augmentation

    def _drawn(self, view: int) -> tuple[Tensor | None, Tensor | None]:
        plan, mix = super()._drawn(view)
        assert plan is not None
        assert mix is not None
        rng, count = stream(self._seed, "view", 1_000_000 + view), len(self._x)
        drawn = np.zeros((count, 10))
        drawn[:, :5] = plan.cpu().numpy()
        if self.augmentation.side is not None:
            side = rng.uniform(*self.augmentation.side, count)
            drawn[:, 5] = side
            drawn[:, 6:8] = (rng.random((count, 2)) * 2 - 1) * np.abs(1 - side)[:, None]
        drawn[:, 8:] = rng.uniform(-self.augmentation.colours, self.augmentation.colours, (count, 2))
        if self.augmentation.everywhere:  # a view with an odd number has them
            mix = super()._drawn(2 * view + 1)[1]
        return torch.from_numpy(drawn).float().to(self._x.device), mix

    def _inputs(self, rows: Tensor | slice, plan: Tensor | None, mix: Tensor | None) -> Tensor:
        assert plan is not None
        chosen = plan[rows]
        inputs: Tensor
        if self.augmentation.side is None:
            inputs = self._data.public_transform(self._x[rows], chosen[:, :5].long())
        else:
            inputs = windows(self._data.public_transform(self._x[rows], None), chosen)
        if self.augmentation.colours:
            inputs = coloured(inputs, chosen[:, 8], chosen[:, 9])
        if mix is None:
            return inputs
        others: Tensor = self._inputs(mix[rows, 0], plan, None)
        if not self.augmentation.blends:
            return paste(inputs, others, mix[rows])
        share = (mix[rows, 3].to(inputs.dtype) / inputs.shape[-1])[:, None, None, None]  # up to a half
        return inputs * (1 - share) + others * share


def windows(x_TCHW: Tensor, plan: Tensor) -> Tensor:
    """A window of each image, resized to the image and flipped as the plan says; black beyond the border."""
    height, width = x_TCHW.shape[-2:]
    positions = [(torch.arange(side, device=x_TCHW.device) * 2 + 1) / side - 1 for side in (height, width)]
    flipped = plan[:, 5] * (1 - 2 * plan[:, 2])
    ys = positions[0] * plan[:, 5, None] + plan[:, 6, None]
    xs = positions[1] * flipped[:, None] + plan[:, 7, None]
    shape = (len(x_TCHW), height, width)
    grid = torch.stack([xs[:, None, :].expand(shape), ys[:, :, None].expand(shape)], dim=-1)
    return torch.nn.functional.grid_sample(x_TCHW, grid.to(x_TCHW.dtype), align_corners=False)


def coloured(x_TCHW: Tensor, brightness: Tensor, contrast: Tensor) -> Tensor:
    """Another brightness and contrast."""
    middle = x_TCHW.mean(dim=(1, 2, 3), keepdim=True)
    return (x_TCHW - middle) * (1 + contrast[:, None, None, None]) + middle + brightness[:, None, None, None]


class ConfidenceWeighted(DistillationLoss):
    """The Kullback-Leibler loss with a larger weight for images whose target has less entropy."""

    def __call__(self, logits_BC: Tensor, targets_BC: Tensor) -> Tensor:
        entropy = -(targets_BC * targets_BC.clamp_min(1e-9).log()).sum(dim=1)
        weights = 1 - entropy / np.log(targets_BC.shape[1])
        terms = torch.nn.functional.kl_div(torch.log_softmax(logits_BC, dim=1), targets_BC, reduction="none").sum(dim=1)
        return torch.sum(terms * weights) / torch.sum(weights)


def confidence_weighted(settings: Distillation, probabilities: bool, objective: object) -> DistillationLoss:
    """The loss above, whatever the settings name."""
    return ConfidenceWeighted(settings, probabilities)


@contextmanager
def augmented(augmentation: Augmentation) -> Iterator[None]:
    """Distill with this augmentation."""
    views = type("AugmentedViews", (AugmentedViews,), {"augmentation": augmentation})
    loss = confidence_weighted if augmentation.confident else distillation_loss
    with mock.patch.object(method, "Views", views), mock.patch.object(method, "distillation_loss", loss):
        yield


def main() -> None:
    words = effects.parsed(__doc__, list(AUGMENTATIONS))
    for path in words.runs:
        redistill = effects.Redistillation(path, words.data, torch.device(words.device))
        about = {"run": tables.name_of(path), "n": redistill.experiment.cohorts, "seed": redistill.experiment.seed}
        for name in words.only:
            augmentation = AUGMENTATIONS[name]
            with augmented(augmentation):
                row = about | {"views": name} | redistill({**effects.OURS, **augmentation.settings}, effects.plain)
            print(json.dumps(row), flush=True)
            tables.add(words.out, [row], ("run", "views"))


if __name__ == "__main__":
    main()
