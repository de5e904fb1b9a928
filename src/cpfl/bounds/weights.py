"""The scalar weight p_i of each cohort's model, from the weights by class that the distillation uses."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpfl.distillation.objective import teacher_weights
from cpfl.errors import SettingError
from cpfl.privacy.label_counts import HIDDEN
from cpfl.settings import Distillation


def scalar_weights(settings: Distillation, counts_NC: NDArray[np.int64], cohorts: Sequence[int]) -> NDArray[np.float64]:
    """p_i = Σ_c q_c p[i, c], with the share q_c of class c in all labels that cohorts reported.

    For weights by labels that is the cohort's share of all labels, for uniform ones 1/n.
    """
    weights_NC = teacher_weights(settings, counts_NC, cohorts)
    counts = counts_NC[list(cohorts)].astype(np.float64)
    total_C = counts[counts[:, 0] != HIDDEN].sum(axis=0)
    if not total_C.any():  # no cohort reported any
        total_C = np.ones_like(total_C)
    found: NDArray[np.float64] = weights_NC @ (total_C / total_C.sum())
    if found.min() < 0:
        raise SettingError(
            f"distillation.weights = {settings.weights!r} gives a cohort the weight {found.min():.3g}: the bound needs "
            "weights of at least 0"
        )
    return found
