"""Power-of-choice: of d candidates, those with the largest loss.

Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022. This is their
π_rpow-d, which costs no extra work: a candidate's loss is the mean training loss that it last reported.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpfl.federation.messages import ClientResult
from cpfl.federation.selection.base import CohortInfo, Selection
from cpfl.registry import require


class PowerOfChoice(Selection):
    """Candidates by their share of the data, participants by loss."""

    def __init__(self, cohort: CohortInfo, candidates: int = 0) -> None:
        """`candidates` is d; 0: twice as many as take part."""
        super().__init__(cohort)
        require("candidates", candidates, candidates >= 0, "1 or more, or 0 for twice as many as take part")
        self._candidates = candidates
        self._losses: dict[int, float] = {}

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        # "sample the candidate client set A of size d without replacement such that client k is chosen with
        # probability p_k, the fraction of data at the k-th client" (section 4)
        size = min(len(available), max(count, self._candidates or 2 * count))
        data = np.array([self.cohort.samples[client] for client in available], float)
        drawn = [available[i] for i in rng.choice(len(available), size, replace=False, p=data / data.sum())]
        # "for the clients that have not been selected yet, the latest value is set to ∞" (π_rpow-d); candidates lie in
        # the random order of their drawing, which the sort keeps: ties are broken at random
        drawn.sort(key=lambda client: -self._losses.get(client, math.inf))
        return drawn[:count]

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        self._losses.update((result.client, result.loss) for result in results)

    def state(self) -> dict[str, Any]:
        return {"losses": {str(client): loss for client, loss in self._losses.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._losses = {int(client): loss for client, loss in state["losses"].items()}
