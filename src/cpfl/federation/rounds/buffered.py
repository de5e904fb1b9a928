"""FedBuff: no rounds; clients train all the time, and every K results make a new model.

Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, algorithm 1.
A "round" is one update of the model here. Its server learning rate is 1.
"""

from cpfl.errors import CpflError, SettingError
from cpfl.federation.messages import NOTHING
from cpfl.federation.rounds.plan import MAX_ATTEMPTS, ClientOutcome, RoundPlan, RoundPlanner
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
        running, buffer = list(self._pending), list[ClientOutcome]()
        now, starts, waste = clock, 0, NOTHING
        for _ in range(MAX_ATTEMPTS * self._size):
            concurrency = self._concurrency
            if not running and not self._available(now, buffer):  # wait for the first that becomes available
                now = min(self._cohort.available_from(client, now) for client in self._idle(buffer))
                concurrency = 1
            while len(running) < concurrency and (able := self._available(now, [*running, *buffer])):
                rng = stream(self._seed, "selection", self._cohort.number, number, starts)
                client = able[int(rng.integers(len(able)))]
                running.append(self._predict(client, self._cohort.steps(client), now, number, starts))
                starts += 1
            done = min(running, key=lambda one: (one.ends, one.client))
            running.remove(done)
            now = max(now, done.ends)
            if not done.arrives:
                waste += self._wasted(done, done.lasts, ended=True)
                continue
            buffer.append(done)
            if len(buffer) == self._size:
                buffer.sort(key=lambda one: one.client)
                stale = {one.client: one.round for one in buffer if one.round < number}
                cost = self._cost(buffer, now - clock, done.client, waste)
                return RoundPlan([one.client for one in buffer], {}, stale, cost, running)
        raise CpflError(
            f"update {number} of cohort {self._cohort.number} did not get federation.buffer_size = {self._size} results"
        )
