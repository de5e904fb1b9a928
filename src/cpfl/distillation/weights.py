"""How much each cohort's model counts: the p_i of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpfl.privacy.counts import HIDDEN


def class_weights(counts_NC: NDArray[np.int64], kind: str, cohorts: Sequence[int]) -> NDArray[np.float64]:
    """p[i, c] over the cohorts that take part: a cohort's share of each class, or 1/n. Columns sum to 1.

    A cohort whose counts are hidden gets 1/n of every class; the others share out the rest.
    """
    counts = counts_NC[list(cohorts)].astype(np.float64)
    uniform = np.full_like(counts, 1 / len(counts))
    known = counts[:, :1] != HIDDEN
    if kind == "uniform" or not known.any():
        return uniform
    total = np.where(known, counts, 0).sum(axis=0)
    shares = counts / np.maximum(total, 1) * known.mean()
    return np.where(known & (total > 0), shares, uniform)  # a class nobody holds: 1/n each
