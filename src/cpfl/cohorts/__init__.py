"""Who trains with whom: the plan of cohorts, drawn at random as in the paper, or made from what clients reveal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpfl.cohorts.members import Members
from cpfl.randomness import stream

CohortPlan = Sequence[Sequence[int]]


def random_plan(clients: int, cohorts: int, seed: int) -> CohortPlan:
    """The paper's plan: clients at random into n cohorts whose sizes differ by at most one."""
    order = stream(seed, "cohorts").permutation(clients)
    return [Members(np.sort(part)) for part in np.array_split(order, cohorts)]
