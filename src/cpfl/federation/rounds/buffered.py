"""FedBuff: no rounds; clients train all the time, and every K results make a new model.

Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, algorithm 1.
A "round" is one update of the model here. Its server learning rate is 1.
"""

from cpfl.errors import CpflError, SettingError
from cpfl.federation.accounting import Waste
from cpfl.federation.rounds.plan import MAX_ATTEMPTS, Pending, RoundPlan, RoundPlanner
from cpfl.federation.selection.base import CohortInfo, participants_per_round
from cpfl.randomness import stream


class Buffered(RoundPlanner):
    """Plans the updates of one cohort."""

    aggregation = "fedbuff"

    def __init__(self, cohort: CohortInfo, crash_rate: float, seed: int) -> None:
        super().__init__(cohort, crash_rate, seed)
        settings = cohort.federation
        self._size = settings.buffer_size  # K
        if self._size > len(cohort.clients):
            raise SettingError(
                f"federation.buffer_size = {self._size} is more than the {len(cohort.clients)} clients of cohort "
                f"{cohort.number}: a client is in it once"
            )
        self._concurrency = settings.concurrency or participants_per_round(settings, len(cohort.clients))

    def plan(self, number: int, clock: float) -> RoundPlan:
        """The next K clients that arrive; whenever one arrives or is lost, another begins."""
        timeline = _UpdateTimeline(self, number, clock)
        waste, buffer = Waste(), list[Pending]()
        timeline.fill(self._concurrency)
        for _ in range(MAX_ATTEMPTS * self._size):
            done = timeline.next()
            if done.outcome.arrives:
                buffer.append(done)
            else:
                waste += done.outcome.wasted(done.outcome.lasts, self._cohort.sent_bytes)
            if len(buffer) == self._size:
                last = buffer[-1].outcome.client
                buffer.sort(key=lambda one: one.outcome.client)
                cost = self._cost([one.outcome for one in buffer], timeline.now - clock, last, waste, repeats=0)
                stale = {one.outcome.client: one.round for one in buffer if one.round < number}
                return RoundPlan([one.outcome.client for one in buffer], {}, stale, cost, timeline.running)
            timeline.fill(self._concurrency)
        raise CpflError(
            f"update {number} of cohort {self._cohort.number} did not get federation.buffer_size = {self._size} results"
        )


class _UpdateTimeline:
    """What happens until one update of the model."""

    def __init__(self, planner: Buffered, number: int, clock: float) -> None:
        self.now, self.running = clock, list(planner._pending)
        self._planner, self._cohort, self._number = planner, planner._cohort, number
        self._arrived: set[int] = set()  # a client is in the buffer once
        self._starts = 0

    def fill(self, concurrency: int) -> None:
        """Select idle clients that are available, at random, until so many train at once."""
        planner, number = self._planner, self._number
        while len(self.running) < concurrency and (able := [c for c in self._idle() if self._available(c)]):
            rng = stream(planner._seed, "selection", self._cohort.number, number, self._starts)
            client = able[int(rng.integers(len(able)))]
            outcome = planner._predict(client, self._cohort.steps(client), self.now, number, self._starts)
            self.running.append(Pending(number, self.now, outcome))
            self._starts += 1

    def next(self) -> Pending:
        """The next client that arrives or is lost; if nobody trains, one must become available first."""
        if not self.running:
            self.now = min(self._cohort.available_from(client, self.now) for client in self._idle())
            self.fill(1)
        first = min(self.running, key=lambda one: (one.ends, one.outcome.client))
        self.running.remove(first)
        self.now = max(self.now, first.ends)
        if first.outcome.arrives:
            self._arrived.add(first.outcome.client)
        return first

    def _idle(self) -> list[int]:
        busy = self._arrived | {one.outcome.client for one in self.running}
        return [client for client in self._cohort.clients if client not in busy]

    def _available(self, client: int) -> bool:
        return self._cohort.available_until(client, self.now) > self.now
