"""Other ways to show the public images to teachers and student, tried on the teachers of finished runs.

Everything else is the recipe cpfl. The accuracy on the clients' validation samples says which way to choose.

    python benchmarks/paper/looks.py --data DIR --out results/paper/looks.json [--only "NAME;NAME"] RUN...
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import effects
import kept
import numpy as np
import torch
from torch import Tensor

from cpfl.data.transform import paste
from cpfl.distillation import distil, student
from cpfl.distillation.views import Views
from cpfl.experiment import Distillation
from cpfl.randomness import stream


@dataclass(frozen=True)
class Look:
    """What is done to an image of a view besides what the recipe does."""

    side: tuple[float, float] | None = None  # a window with a side between these, of the image's, brought to its size
    colours: float = 0.0  # brightness and contrast change by up to so much
    blends: bool = False  # of two images, in place of squares
    everywhere: bool = False  # squares are in every view, not in every second one
    sure: bool = False  # what the teachers are sure of counts more
    settings: dict[str, Any] = field(default_factory=dict)


LOOKS = {
    "as in cpfl": Look(),
    "windows of 0.5 to 1": Look(side=(0.5, 1.0)),
    "windows of 0.7 to 1": Look(side=(0.7, 1.0)),
    "windows of 0.75 to 1.25": Look(side=(0.75, 1.25)),
    "colours": Look(colours=0.4),
    "windows of 0.5 to 1, colours": Look(side=(0.5, 1.0), colours=0.4),
    "blends": Look(blends=True),
    "squares in every view": Look(everywhere=True),
    "sure images count more": Look(sure=True),
    "6 views": Look(settings={"distillation.views": 6}),
    "windows of 0.5 to 1, 6 views": Look(side=(0.5, 1.0), settings={"distillation.views": 6}),
    "windows of 0.7 to 1, 6 views": Look(side=(0.7, 1.0), settings={"distillation.views": 6}),
    "windows of 0.5 to 1, 6 views, 125 epochs": Look(
        side=(0.5, 1.0), settings={"distillation.views": 6, "distillation.epochs": 125}
    ),
}


class Looked(Views):
    """Views by a look."""

    look: Look

    def _drawn(self, view: int) -> tuple[Tensor | None, Tensor | None]:
        plan, mix = super()._drawn(view)
        assert plan is not None
        assert mix is not None
        rng, count = stream(self._seed, "view", 1_000_000 + view), len(self._x)
        drawn = np.zeros((count, 10))
        drawn[:, :5] = plan.cpu().numpy()
        if self.look.side is not None:
            side = rng.uniform(*self.look.side, count)
            drawn[:, 5] = side
            drawn[:, 6:8] = (rng.random((count, 2)) * 2 - 1) * np.abs(1 - side)[:, None]
        drawn[:, 8:] = rng.uniform(-self.look.colours, self.look.colours, (count, 2))
        if self.look.everywhere:  # a view with an odd number has them
            mix = super()._drawn(2 * view + 1)[1]
        return torch.from_numpy(drawn).float().to(self._x.device), mix

    def _inputs(self, rows: Tensor | slice, plan: Tensor | None, mix: Tensor | None) -> Tensor:
        assert plan is not None
        chosen = plan[rows]
        if self.look.side is None:
            inputs = self._data.public_transform(self._x[rows], chosen[:, :5].long())
        else:
            inputs = windows(self._data.public_transform(self._x[rows], None), chosen)
        if self.look.colours:
            inputs = coloured(inputs, chosen[:, 8], chosen[:, 9])
        if mix is None:
            return inputs
        others = self._inputs(mix[rows, 0], plan, None)
        if not self.look.blends:
            return paste(inputs, others, mix[rows])
        share = (mix[rows, 3].to(inputs.dtype) / inputs.shape[-1])[:, None, None, None]  # up to a half
        return inputs * (1 - share) + others * share


def windows(x_TCHW: Tensor, plan: Tensor) -> Tensor:
    """A window of each image, brought to its size and mirrored as the plan says; black beyond the border."""
    height, width = x_TCHW.shape[-2:]
    places = [(torch.arange(side, device=x_TCHW.device) * 2 + 1) / side - 1 for side in (height, width)]
    turned = plan[:, 5] * (1 - 2 * plan[:, 2])
    ys = places[0] * plan[:, 5, None] + plan[:, 6, None]
    xs = places[1] * turned[:, None] + plan[:, 7, None]
    shape = (len(x_TCHW), height, width)
    grid = torch.stack([xs[:, None, :].expand(shape), ys[:, :, None].expand(shape)], dim=-1)
    return torch.nn.functional.grid_sample(x_TCHW, grid.to(x_TCHW.dtype), align_corners=False)


def coloured(x_TCHW: Tensor, bright: Tensor, strong: Tensor) -> Tensor:
    """Another brightness and contrast."""
    middle = x_TCHW.mean(dim=(1, 2, 3), keepdim=True)
    return (x_TCHW - middle) * (1 + strong[:, None, None, None]) + middle + bright[:, None, None, None]


def surely(logits_BC: Tensor, targets_BC: Tensor, settings: Distillation) -> Tensor:
    """The Kullback-Leibler loss, in which an image counts the more, the surer its target is."""
    entropy = -(targets_BC * targets_BC.clamp_min(1e-9).log()).sum(dim=1)
    worth = 1 - entropy / np.log(targets_BC.shape[1])
    terms = torch.nn.functional.kl_div(torch.log_softmax(logits_BC, dim=1), targets_BC, reduction="none").sum(dim=1)
    return torch.sum(terms * worth) / torch.sum(worth)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Distil with this look."""
    views = type("Looked", (Looked,), {"look": look})
    distance = surely if look.sure else student.distance
    with mock.patch.object(distil, "Views", views), mock.patch.object(student, "distance", distance):
        yield


def main() -> None:
    words = effects.asked(__doc__, list(LOOKS))
    for path in words.runs:
        study = effects.Study(path, words.data, torch.device(words.device))
        about = {"run": kept.name_of(path), "n": study.experiment.cohorts, "seed": study.experiment.seed}
        for name in words.only:
            with looking(LOOKS[name]):
                row = about | {"look": name} | study({**effects.OURS, **LOOKS[name].settings}, effects.plain)
            print(json.dumps(row), flush=True)
            kept.add(words.out, [row], ("run", "look"))


if __name__ == "__main__":
    main()
