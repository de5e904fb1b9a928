"""Selection rules that learn from earlier rounds: Oort, REFL and power-of-choice."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from cpfl.federation.messages import ClientResult
from cpfl.federation.selection.base import CohortInfo, Selection
from cpfl.registry import require
from cpfl.settings.types import MOST


class Guided(Selection):
    """A rule whose checkpoint holds its `learned` attributes; clients, the keys of dictionaries, are texts there."""

    learned: tuple[str, ...]

    def state(self) -> dict[str, Any]:
        return {name: _keyed_by(str, getattr(self, f"_{name}")) for name in self.learned}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.learned:
            setattr(self, f"_{name}", _keyed_by(int, state[name]))


class Oort(Guided):
    """Clients whose data still have high losses, as long as they are fast enough; new ones are explored.

    Lai, Zhu, Madhyastha, Chowdhury: Oort: Efficient Federated Learning via Guided Participant Selection, OSDI 2021;
    equation (1) and algorithm 1. Defaults are those of the authors' code (SymbioticLab/Oort, and FedScale after it) or
    of the paper's section 7.1; where neither says, a comment does.
    """

    squared_losses = True
    learned = ("utility", "last", "times", "explore", "steps", "utility_sums")

    def __init__(
        self,
        cohort: CohortInfo,
        penalty: float = 2.0,  # α; round_penalty
        explore: float = 0.9,  # ε at the start; exploration_factor
        explore_decay: float = 0.98,  # a round; exploration_decay
        explore_least: float = 0.2,  # the paper; FedScale's exploration_min is 0.3
        pacer_seconds: float = 0.0,  # Δ; 0: what three in ten of the cohort need at most, as round_threshold = 30
        pacer_rounds: int = 20,  # W; pacer_step
        cutoff: float = 0.95,  # c, the paper: clients above so much of the last count one's utility may be drawn
        clip: float = 0.95,  # the paper; utilities are clipped at this quantile, FedScale's clip_bound is 0.9
        most_rounds: int = 0,  # a client is selected at most so often (the paper); 0: no limit, as in FedScale
        scaled: bool = True,  # bring U to 0 … 1 before the uncertainty is added, as their code does; False: as printed
    ) -> None:
        super().__init__(cohort)
        shares = {"explore": explore, "explore_decay": explore_decay, "explore_least": explore_least}
        for key, value in {**shares, "cutoff": cutoff, "clip": clip}.items():
            require(key, value, 0 <= value <= 1, "0 to 1")
        for key, value in {"penalty": penalty, "pacer_seconds": pacer_seconds, "most_rounds": most_rounds}.items():
            require(key, value, 0 <= value <= MOST, f"0 or more, at most {MOST:,}")
        require("pacer_rounds", pacer_rounds, 1 <= pacer_rounds <= MOST, f"1 or more, at most {MOST:,}")
        self._penalty, self._cutoff, self._clip, self._most, self._scaled = penalty, cutoff, clip, most_rounds, scaled
        self._explore, self._decay, self._least = explore, explore_decay, explore_least
        self._step = pacer_seconds or float(np.quantile(list(cohort.seconds.values()), 0.3))  # Δ
        self._steps, self._window = 1, pacer_rounds  # T in steps of Δ
        self._utility: dict[int, float] = {}  # U, the statistical utility when it last took part
        self._last: dict[int, int] = {}  # L, the round in which it last took part
        self._times: dict[int, int] = {}  # how often it was selected
        self._utility_sums: list[float] = []  # Σ U of the participants, round by round

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
        """Algorithm 1, SelectParticipant."""
        listed = [c for c in available if not self._most or self._times.get(c, 0) < self._most]
        if len(listed) < count:  # too few are left: better a client that was selected often than none
            rest = sorted(set(available) - set(listed), key=lambda c: self._times[c])
            listed += rest[: count - len(listed)]
        explored = [c for c in listed if c in self._utility]
        fresh = [c for c in listed if c not in self._utility]
        # The whole part of (1 − ε) × K, as their code has it: that of ε × K would be nobody in small rounds.
        share = math.floor((1 - self._explore) * count + 1e-9)  # (1 − 0.9) × 10 is 1, whatever floats say
        exploited = min(len(explored), max(count - len(fresh), share))
        chosen = self._exploit(explored, exploited, round, rng)
        speeds = np.array([1 / self.cohort.seconds[c] for c in fresh])
        return chosen + _drawn(fresh, speeds, min(len(fresh), count - exploited), rng)  # SampleBySpeed(C − E, ε × K)

    def _exploit(self, explored: list[int], count: int, round: int, rng: Generator) -> list[int]:
        if not count:
            return []
        utilities = self.utilities(explored, round)
        # "admit clients with greater than c% of cut-off utility": CutoffUtil(E, c × Util((1 − ε) × K))
        bar = self._cutoff * np.sort(utilities)[::-1][count - 1]
        admitted = np.flatnonzero(utilities >= bar)
        return _drawn([explored[i] for i in admitted], utilities[admitted], count, rng)  # SampleByUtil

    def utilities(self, clients: Sequence[int], round: int) -> NDArray[np.float64]:
        """Util(i) of clients that took part before."""
        known = list(self._utility.values())
        cap, low, span = float(np.quantile(known, self._clip)), 0.0, 1.0
        if self._scaled:  # beside |B| times a loss, sqrt(0.1 …) would be nothing: (U − min) / (max − min), the least
            low = 0.999 * min(known)  # one not quite 0, so that it can be drawn
            span = max(max(known) - low, 1e-4)
        found, preferred = [], self.preferred
        for client in clients:
            value = (min(self._utility[client], cap) - low) / span
            value += math.sqrt(0.1 * math.log(round) / self._last[client])  # temporal uncertainty
            seconds = self.cohort.seconds[client]
            if preferred < seconds:
                value *= (preferred / seconds) ** self._penalty  # (T / t_i)^(1(T < t_i) × α)
            found.append(value)
        return np.array(found)

    @property
    def preferred(self) -> float:
        """T, the preferred duration of a round."""
        return self._steps * self._step

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        total = 0.0
        for result in results:
            assert result.squared_losses is not None
            # |B_i| · sqrt(1/|B_i| · Σ Loss(k)²), equation (1); the mean is over the samples trained on, which may be
            # all of B_i several times, or a part
            value = self.cohort.samples[result.client] * math.sqrt(result.squared_losses / result.samples)
            self._utility[result.client], self._last[result.client] = value, round
            self._times[result.client] = self._times.get(result.client, 0) + 1
            total += value
        self._utility_sums = [*self._utility_sums, total][-2 * self._window :]
        # Pacer: Σ U(R − 2W : R − W) > Σ U(R − W : R) lets T grow by Δ; tested every W rounds, when the sums are new
        if round % self._window == 0 and len(self._utility_sums) == 2 * self._window:
            before, now = self._utility_sums[: self._window], self._utility_sums[self._window :]
            self._steps += math.fsum(before) > math.fsum(now)
        if self._explore > self._least:
            self._explore = max(self._least, self._explore * self._decay)


class LeastAvailable(Guided):
    """REFL: the clients that predict the least availability in the slot [μ, 2μ] from now come first.

    Abdelmoniem, Sahu, Canini, Fahmy: REFL: Resource-Efficient Federated Learning, EuroSys 2023, section 4.1. Its other
    half, damped stale updates, is federation.straggler_policy = "stale" (staleness.py).

    `alpha` is the weight of old rounds in μ; `accuracy` is how often a client's forecast of itself is right. A client
    that took part rests for `rest` rounds of μ seconds while there are others. That is 5 in the authors' code, among
    thousands of clients. Here it is 0: in a small cohort only clients that never meet a deadline might be left.
    """

    learned = ("mean", "last")

    def __init__(self, cohort: CohortInfo, alpha: float = 0.25, accuracy: float = 0.9, rest: int = 0) -> None:
        super().__init__(cohort)
        require("alpha", alpha, 0 <= alpha <= 1, "0 to 1")
        require("accuracy", accuracy, 0 <= accuracy <= 1, "0 to 1")
        require("rest", rest, 0 <= rest <= MOST, f"0 or more, at most {MOST:,}")
        self._alpha, self._accuracy, self._rest = alpha, accuracy, rest
        self._mean: float | None = None  # μ
        self._last: dict[int, float] = {}  # when a client last took part, if it still rests

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
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
        shares = [availability.schedule(client).share(*slot) for client in rested]
        forecast = {c: 1 - share if wrong[c] else share for c, share in zip(rested, shares, strict=True)}
        return sorted(rested, key=forecast.__getitem__)[:count]

    def update(self, round: int, results: Sequence[ClientResult], seconds: float, clock: float) -> None:
        # μ_t = (1 − α) · D_{t−1} + α · μ_{t−1}
        old = seconds if self._mean is None else self._mean
        self._mean = (1 - self._alpha) * seconds + self._alpha * old
        self._last.update((result.client, clock) for result in results)
        longest = self._rest * self._mean
        self._last = {client: last for client, last in self._last.items() if clock - last < longest}


class PowerOfChoice(Guided):
    """Of d candidates, drawn by their share of the data, those with the largest loss.

    Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022. This is their
    π_rpow-d, which costs no extra work: a candidate's loss is the mean training loss that it last reported.
    `candidates` is d; 0: twice as many as take part.
    """

    learned = ("losses",)

    def __init__(self, cohort: CohortInfo, candidates: int = 0) -> None:
        super().__init__(cohort)
        require("candidates", candidates, candidates >= 0, "1 or more, or 0 for twice as many as take part")
        self._candidates = candidates
        self._losses: dict[int, float] = {}

    def select(self, available: Sequence[int], count: int, round: int, rng: Generator, clock: float) -> Sequence[int]:
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


def _keyed_by(kind: type, value: Any) -> Any:
    return {kind(key): one for key, one in value.items()} if isinstance(value, dict) else value


def _drawn(clients: list[int], weights: NDArray[np.float64], count: int, rng: Generator) -> list[int]:
    """Draw so many of the clients without replacement, by weight."""
    if not count:
        return []
    total = weights.sum()
    shares = weights / total if total > 0 and (weights > 0).sum() >= count else None
    return [clients[i] for i in rng.choice(len(clients), count, replace=False, p=shares)]
