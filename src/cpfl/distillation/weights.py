"""Teacher weights: the p_i of the paper, how much each cohort's model counts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import SettingError
from cpfl.privacy.label_counts import HIDDEN
from cpfl.settings import Distillation
from cpfl.settings.choices import TEACHER_WEIGHTS


class TeacherWeights:
    """Subclass it, write `weights`, and name it "module:Class" in distillation.weights.

    Keyword arguments of the constructor are distillation.weights_args.
    """

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """p[i, c], the weight of teacher i for class c; every column sums to 1.

        Parameters
        ----------
        counts_NC
            Training labels of each cohort by class.
        known_N
            Which cohorts reported their label counts; the others' rows mean nothing.
        """
        raise NotImplementedError


class Uniform(TeacherWeights):
    """1/n for every teacher."""

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """1/n."""
        return np.full_like(counts_NC, 1 / len(counts_NC))


class Labels(Uniform):
    """A cohort's share of each class's labels, as in the paper.

    A cohort whose counts are hidden gets 1/n of every class, the others share the rest; a class nobody holds: 1/n each.
    """

    def weights(self, counts_NC: NDArray[np.float64], known_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """n[i, c] / Σ_j n[j, c]."""
        uniform, known = super().weights(counts_NC, known_N), known_N[:, None]
        total = np.where(known, counts_NC, 0).sum(axis=0)
        shares = counts_NC / np.maximum(total, 1) * known_N.mean()
        return np.where(known & (total > 0), shares, uniform)


def teacher_weights(
    settings: Distillation, counts_NC: NDArray[np.int64], cohorts: Sequence[int]
) -> NDArray[np.float64]:
    """The weights p of these cohorts' models, (N, C)."""
    rule = TEACHER_WEIGHTS.build(settings.weights, settings.weights_args)
    counts = counts_NC[list(cohorts)].astype(np.float64)
    found = np.asarray(rule.weights(counts, counts[:, 0] != HIDDEN), np.float64)
    if found.shape != counts.shape or not np.allclose(found.sum(axis=0), 1):
        raise SettingError(
            f"distillation.weights = {settings.weights!r} must return an array of shape {counts.shape} whose columns "
            "sum to 1"
        )
    return found
