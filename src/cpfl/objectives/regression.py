"""Numbers to predict."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from cpfl.errors import DataError
from cpfl.objectives.base import LOWEST, Labels, Objective


class Regression(Objective):
    """Labels are numbers, (S,) or (S, K); squared error, the mean over outputs.

    The metric is R² in per cent: the share of the labels' variance that predictions explain, the mean over outputs.
    100 is perfect; 0 is no better than the labels' mean, and a model that is worse than that has a negative one.
    """

    metric = "R²"

    def losses(self, answers: Tensor, y: Tensor) -> Tensor:
        """Squared error, the mean over outputs."""
        return (answers - y.to(answers.dtype)).square().mean(-1)

    def score(self, answers: Tensor, y: Tensor) -> float:
        """R² in per cent; NaN where labels do not vary."""
        truth = y.double()
        missed, spread = (truth - answers.double()).square().sum(0), (truth - truth.mean(0)).square().sum(0)
        if not spread.gt(0).all():
            return float("nan")
        return max(100 * (1 - missed / spread).mean().item(), LOWEST)

    def classes(self, sets: Mapping[str, Labels], given: int) -> int:
        """Refuse a test set that has no R²."""
        found = super().classes(sets, given)
        if "test" in sets and (np.ptp(sets["test"], axis=0) == 0).any():
            raise DataError("labels of the test set are all the same: R² has no meaning there")
        return found
