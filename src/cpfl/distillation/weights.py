"""How much each cohort's model counts: the p_i of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts import CohortPlan


def cohort_counts(counts_MC: NDArray[np.int64], plan: CohortPlan) -> NDArray[np.int64]:
    """Label counts of whole cohorts, (N, C); nothing about a single client leaves here."""
    return np.stack([counts_MC[clients].sum(axis=0) for clients in plan])


def class_weights(counts_NC: NDArray[np.int64], kind: str, cohorts: Sequence[int]) -> NDArray[np.float64]:
    """p[i, c] over the cohorts that take part: a cohort's share of each class, or 1/n. Columns sum to 1."""
    counts = counts_NC[list(cohorts)].astype(np.float64)
    uniform = np.full_like(counts, 1 / len(counts))
    if kind == "uniform":
        return uniform
    total = counts.sum(axis=0)
    return np.where(total > 0, counts / np.maximum(total, 1), uniform)  # a class nobody holds: 1/n each
