"""Who trains with whom: the plan of cohorts, drawn at random as in the paper, or made from what clients reveal."""

from __future__ import annotations

import numpy as np

from cpfl.randomness import stream

CohortPlan = list[list[int]]


def random_plan(clients: int, cohorts: int, seed: int) -> CohortPlan:
    """The paper's plan: clients at random into n cohorts whose sizes differ by at most one."""
    order = stream(seed, "cohorts").permutation(clients)
    return [sorted(int(k) for k in part) for part in np.array_split(order, cohorts)]
