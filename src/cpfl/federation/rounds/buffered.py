"""FedBuff: no rounds; clients train all the time, and every K results make a new model.

Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, algorithm 1.
A "round" is one update of the model here. Its server learning rate is 1.
"""

from cpfl.errors import CpflError, SettingError
from cpfl.federation.messages import NOTHING
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
        running, buffer = list(self._pending), list[Pending]()
        now, starts, waste = clock, 0, NOTHING
        for _ in range(MAX_ATTEMPTS * self._size):
            concurrency = self._concurrency
            if not running and not self._available(now, buffer):  # wait for the first that becomes available
                now = min(self._cohort.available_from(client, now) for client in self._idle(buffer))
                concurrency = 1
            while len(running) < concurrency and (able := self._available(now, [*running, *buffer])):
                running.append(self._begin(able, number, now, starts))
                starts += 1
            done = min(running, key=lambda one: (one.ends, one.outcome.client))
            running.remove(done)
            now = max(now, done.ends)
            if not done.outcome.arrives:
                waste += self._wasted(done.outcome, done.outcome.lasts, ended=True)
                continue
            buffer.append(done)
            if len(buffer) == self._size:
                buffer.sort(key=lambda one: one.outcome.client)
                outcomes = [one.outcome for one in buffer]
                stale = {one.outcome.client: one.round for one in buffer if one.round < number}
                cost = self._cost(outcomes, now - clock, done.outcome.client, waste)
                return RoundPlan([outcome.client for outcome in outcomes], {}, stale, cost, running)
        raise CpflError(
            f"update {number} of cohort {self._cohort.number} did not get federation.buffer_size = {self._size} results"
        )

    def _begin(self, able: list[int], number: int, clock: float, starts: int) -> Pending:
        """One of these clients begins, at random: the first, second, … that does before this update."""
        rng = stream(self._seed, "selection", self._cohort.number, number, starts)
        client = able[int(rng.integers(len(able)))]
        outcome = self._predict(client, self._cohort.steps(client), clock, number, starts)
        return Pending(number, clock, outcome)
