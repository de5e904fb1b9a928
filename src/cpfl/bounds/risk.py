"""The empirical risk, with the 0-1 loss: L̂(h) = 1/m Σ_j 1[h(x_j) ≠ y_j], which lies in [0, 1]."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl.errors import SettingError
from cpfl.objectives.base import NOT_COUNTED, Labels, Objective
from cpfl.objectives.classes import Counted

Losses = NDArray[np.float64]


def with_classes(objective: Objective, name: str) -> Counted:
    """The run's objective, called `name`; one without right and wrong answers is refused."""
    if not isinstance(objective, Counted):
        raise SettingError(
            f"model.objective = {name!r} has no classes: the bound counts wrong answers, so it needs one of "
            "classification, per-position, multi-label, binary, or a subclass of theirs"
        )
    return objective


def counted(objective: Counted, y: Labels) -> NDArray[np.bool_]:
    """Which samples have an item that is counted; the others have no loss."""
    found: NDArray[np.bool_] = (objective.counted(y) != NOT_COUNTED).any(axis=1)
    return found


def losses(objective: Counted, answers: Tensor, y: Tensor) -> Losses:
    """The 0-1 loss of each sample, (S,): of several labels or positions, the share that is wrong."""
    known_SJ = torch.from_numpy(objective.counted(y.cpu().numpy()) != NOT_COUNTED)
    wrong_SJ = ~objective.right(answers, y).cpu() & known_SJ
    found: Losses = (wrong_SJ.sum(1).double() / known_SJ.sum(1)).numpy()
    return found
