"""FedBuff: no rounds; clients train all the time, and every K results make a new model.

Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, algorithm 1.
A "round" is one update of the model here. Its server learning rate is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpfl.errors import CpflError, SettingError
from cpfl.federation.fates import foresee
from cpfl.federation.reports import ClientResult
from cpfl.federation.round_plan import MOST, Begun, Outlasting, Plan, Timing, Waste
from cpfl.federation.selection import Cohort, size
from cpfl.models import State
from cpfl.randomness import stream


class Buffered(Outlasting):
    """Plans one cohort's updates."""

    ahead = False
    squares = False
    rule = "fedbuff"

    def __init__(self, cohort: Cohort, crash_rate: float, seed: int) -> None:
        super().__init__(cohort.sent_bytes)
        settings = cohort.federation
        self._cohort, self._crash_rate, self._seed = cohort, crash_rate, seed
        self._size = settings.buffer  # K
        if self._size > len(cohort.clients):
            raise SettingError(
                f"federation.buffer = {self._size} is more than the {len(cohort.clients)} clients of cohort "
                f"{cohort.number}: a client is in it once"
            )
        self._concurrency = settings.concurrency or size(settings, len(cohort.clients))

    def plan(self, number: int, clock: float) -> Plan:
        """Who arrives next, K times; whoever arrives or is lost makes room for another."""
        course = _Course(self, self._cohort, number, clock, list(self._under_way.begun))
        waste, buffer = Waste(), list[Begun]()
        course.fill(self._concurrency)
        for _ in range(MOST * self._size):
            begun = course.next()
            if begun.fate.arrives:
                buffer.append(begun)
            else:
                waste += Waste(begun.fate.spent(begun.fate.lasts), self._bytes)
            if len(buffer) == self._size:
                return self._plan(number, clock, course, buffer, waste)
            course.fill(self._concurrency)
        raise CpflError(
            f"update {number} of cohort {self._cohort.number} did not find federation.buffer = {self._size} results"
        )

    def _plan(self, number: int, clock: float, course: _Course, buffer: list[Begun], waste: Waste) -> Plan:
        last = buffer[-1]
        buffer = sorted(buffer, key=lambda begun: begun.fate.client)
        timing = Timing(
            seconds=course.now - clock,
            slowest=last.fate.client,
            cpu_seconds=sum(begun.fate.computing for begun in buffer) + waste.cpu_seconds,
            bytes=2 * self._bytes * len(buffer) + waste.bytes,
            waste=waste,
            repeats=0,
        )
        stale = {begun.fate.client: begun.round for begun in buffer if begun.round < number}
        return Plan([begun.fate.client for begun in buffer], {}, stale, timing, course.running)

    def begin(self, client: int, number: int, start: int, now: float) -> Begun:
        """A client begins to train from the model of this update; it is the update's so-manieth to begin."""
        steps = self._cohort.steps(client)
        return Begun(
            number, now, foresee(self._cohort, client, steps, now, self._crash_rate, self._seed, number, start)
        )

    def pick(self, able: Sequence[int], number: int, start: int) -> int:
        """One of these, at random."""
        return able[int(stream(self._seed, "selection", self._cohort.number, number, start).integers(len(able)))]

    def close(
        self, plan: Plan, number: int, model: State, results: Sequence[ClientResult], seconds: float, clock: float
    ) -> None:
        """Others are still under way."""
        self._under_way.close(number, model, plan.after)

    def state(self) -> tuple[dict[int, State], dict[str, Any]]:
        """What is under way."""
        return self._under_way.state()

    def restore(self, models: dict[int, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._under_way.restore(models, numbers)


class _Course:
    """The way to one update."""

    def __init__(self, planner: Buffered, cohort: Cohort, number: int, clock: float, running: list[Begun]) -> None:
        self.now, self.running = clock, running
        self._planner, self._cohort, self._number = planner, cohort, number
        self._over: set[int] = set()  # arrived: a client is in the buffer once
        self._starts = 0

    def fill(self, concurrency: int) -> None:
        """Ask clients that are there and idle, as many as may train at once."""
        while len(self.running) < concurrency and (able := [c for c in self._idle() if self._there(c)]):
            client = self._planner.pick(able, self._number, self._starts)
            self.running.append(self._planner.begin(client, self._number, self._starts, self.now))
            self._starts += 1

    def next(self) -> Begun:
        """The next that arrives or is lost; if nobody trains, somebody must come back first."""
        if not self.running:
            self.now = min(self._cohort.back(client, self.now) for client in self._idle())
            self.fill(1)
        first = min(self.running, key=lambda begun: (begun.ends, begun.fate.client))
        self.running.remove(first)
        self.now = max(self.now, first.ends)
        if first.fate.arrives:
            self._over.add(first.fate.client)
        return first

    def _idle(self) -> list[int]:
        busy = self._over | {begun.fate.client for begun in self.running}
        return [client for client in self._cohort.clients if client not in busy]

    def _there(self, client: int) -> bool:
        return self._cohort.until(client, self.now) > self.now
