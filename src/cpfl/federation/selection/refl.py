"""REFL: the clients that are least likely to be available later come first.

Abdelmoniem, Sahu, Canini, Fahmy: REFL: Resource-Efficient Federated Learning, EuroSys 2023, section 4.1 (intelligent
participant selection). Its other half, damped stale updates, is federation.straggler_policy = "stale" (staleness.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpfl.federation.messages import ClientResult
from cpfl.federation.selection.base import CohortInfo, Selection
from cpfl.registry import require


class LeastAvailable(Selection):
    """Selects the clients that predict the least availability in the slot [μ, 2μ] from now.

    `alpha` is the weight of old rounds in μ; `accuracy` is how often a client's forecast of itself is right. A client
    that took part rests for `rest` rounds of μ seconds while there are others. That is 5 in the authors' code, among
    thousands of clients. Here it is 0: in a small cohort only clients that never meet a deadline might be left.
    """

    def __init__(self, cohort: CohortInfo, alpha: float = 0.25, accuracy: float = 0.9, rest: int = 0) -> None:
        super().__init__(cohort)
        require("alpha", alpha, 0 <= alpha <= 1, "0 to 1")
        require("accuracy", accuracy, 0 <= accuracy <= 1, "0 to 1")
        require("rest", rest, rest >= 0, "0 or more")
        self._alpha, self._accuracy, self._rest = alpha, accuracy, rest
        self._mean: float | None = None  # μ
        self._last: dict[int, float] = {}  # when a client last took part, if it still rests

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        order = [available[i] for i in rng.permutation(len(available))]  # the sorts keep it: ties are broken at random
        wrong = dict(zip(order, rng.random(len(available)) >= self._accuracy, strict=True))
        if self._mean is None:  # before the first round its length is unknown
            return order[:count]
        resting = {c for c in order if c in self._last and clock - self._last[c] < self._rest * self._mean}
        rested = [client for client in order if client not in resting]
        if len(rested) <= count:  # too few others: add those that have rested longest
            longest = sorted(resting, key=lambda client: (self._last[client], client))
            return rested + longest[: count - len(rested)]
        availability = self.cohort.fleet.availability
        assert availability is not None, "the experiment was checked for it"
        slot = clock + self._mean, clock + 2 * self._mean
        forecast = {}
        for client in rested:
            share = availability.schedule(client).share(*slot)
            forecast[client] = 1 - share if wrong[client] else share
        return sorted(rested, key=lambda client: forecast[client])[:count]

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        # μ_t = (1 − α) · D_{t−1} + α · μ_{t−1}
        old = seconds if self._mean is None else self._mean
        self._mean = (1 - self._alpha) * seconds + self._alpha * old
        self._last.update((result.client, clock) for result in results)
        longest = self._rest * self._mean
        self._last = {client: last for client, last in self._last.items() if clock - last < longest}

    def state(self) -> dict[str, Any]:
        return {"mean": self._mean, "last": {str(client): last for client, last in self._last.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._mean = state["mean"]
        self._last = {int(client): last for client, last in state["last"].items()}
