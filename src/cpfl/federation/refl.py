"""REFL: those who will be there least come first.

Abdelmoniem, Sahu, Canini, Fahmy: REFL: Resource-Efficient Federated Learning, EuroSys 2023, section 4.1 (intelligent
participant selection). Its other half, stale updates that are damped, is federation.late = "stale" (staleness.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpfl.federation.reports import ClientResult
from cpfl.federation.selection import Cohort, Selection


class LeastAvailable(Selection):
    """Asks every client how likely it is there in the slot [μ, 2μ] from now, and takes the least likely ones."""

    def __init__(self, cohort: Cohort, alpha: float = 0.25, accuracy: float = 0.9, rest: int = 0) -> None:
        """`alpha` is the old rounds' weight in μ; `accuracy` is how often a client's forecast of itself is right; who
        took part holds off for `rest` rounds of μ seconds while there are others. That is 5 in the authors' code, among
        thousands; in a small cohort only those may be left who never make a deadline, so here it is 0."""
        super().__init__(cohort)
        for key, value in (("alpha", alpha), ("accuracy", accuracy)):
            if not 0 <= value <= 1:
                raise ValueError(f"{key} = {value}: 0 to 1")
        if rest < 0:
            raise ValueError(f"rest = {rest}: 0 or more")
        self._alpha, self._accuracy, self._rest = alpha, accuracy, rest
        self._mean: float | None = None  # μ
        self._last: dict[int, float] = {}  # when a client last took part, if it still rests

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        order = [able[i] for i in rng.permutation(len(able))]  # the sorts keep it: ties are broken at random
        wrong = dict(zip(order, rng.random(len(able)) >= self._accuracy, strict=True))
        if self._mean is None:  # before the first round nobody knows how long one lasts
            return order[:wanted]
        resting = {c for c in order if c in self._last and clock - self._last[c] < self._rest * self._mean}
        rested = [client for client in order if client not in resting]
        if len(rested) <= wanted:  # too few others: who has rested longest comes too
            longest = sorted(resting, key=lambda client: (self._last[client], client))
            return rested + longest[: wanted - len(rested)]
        there = self.cohort.fleet.availability
        assert there is not None, "the experiment was checked for it"
        slot = clock + self._mean, clock + 2 * self._mean
        told = {}
        for client in rested:
            share = there.week(client).share(*slot)
            told[client] = 1 - share if wrong[client] else share
        return sorted(rested, key=lambda client: told[client])[:wanted]

    def learn(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
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
