"""Synchronous rounds, and what keeps them from going to plan: stragglers, deadlines, absence and crashes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpfl.cohorts.members import Members
from cpfl.errors import CpflError, SettingError
from cpfl.federation import choosing
from cpfl.federation.fates import Fate, foresee
from cpfl.federation.reports import ClientResult
from cpfl.federation.round_plan import MOST, Begun, Outlasting, Plan, Timing, Waste
from cpfl.federation.selection import Cohort, size
from cpfl.federation.shortfall import Shortfall
from cpfl.federation.stopping import ROUNDING
from cpfl.federation.waiting import horizon, together
from cpfl.models import State
from cpfl.randomness import stream

DAY = 24 * 3600.0


@dataclass(frozen=True)
class Attempt:
    """How one attempt at a round goes, in seconds since it began."""

    seconds: float
    slowest: int  # whom everybody waited for
    counted: list[Fate]  # in client order
    others: list[Fate]


def attempt(fates: Sequence[Fate], needed: int, deadline: float) -> Attempt:
    """The first `needed` to arrive count, and the round ends with the last of them; if fewer arrive, it ends when all
    have arrived or are lost, or at the deadline (0: none)."""
    limit = deadline + ROUNDING if deadline else math.inf
    order = sorted(fates, key=lambda fate: (fate.lasts, fate.client))
    counted = [fate for fate in order if fate.arrives and fate.lasts <= limit][:needed]
    last = order[-1]
    if len(counted) == needed:
        last, seconds = counted[-1], counted[-1].lasts
    else:
        seconds = last.lasts if last.lasts <= limit else deadline
    counted.sort(key=lambda fate: fate.client)
    clients = {fate.client for fate in counted}
    return Attempt(seconds, last.client, counted, [fate for fate in fates if fate.client not in clients])


class Rounds(Outlasting):
    """Plans one cohort's rounds."""

    def __init__(self, cohort: Cohort, crash_rate: float, seed: int) -> None:
        super().__init__(cohort.sent_bytes)
        self._cohort, self._settings, self._crash_rate, self._seed = cohort, cohort.federation, crash_rate, seed
        self._everybody = Members(cohort.clients)
        self._needed = size(self._settings, len(cohort.clients))
        if self._settings.minimum > self._needed:
            raise SettingError(
                f"federation.minimum = {self._settings.minimum} is more than the {self._needed} clients that take part "
                f"in a round of cohort {cohort.number}: 1 to {self._needed}"
            )
        more = math.ceil(self._needed * (1 + self._settings.over_selection) - 1e-9)
        self._asked = min(more, len(cohort.clients))
        self._selection = choosing.selection(cohort)
        self.squares = self._selection.squares
        self._stale = self._settings.late == "stale"
        self.rule = "refl" if self._stale else "mean"
        present = cohort.fleet.availability is None
        self.ahead = self._selection.foresees and present and not self._stale
        self._to_plan = present and not (self._settings.over_selection or self._settings.deadline or crash_rate)
        if self._settings.minimum > 1 and not present:
            self._wait(1, 0.0)  # so many may never be there at once: better told before anybody trains

    def plan(self, number: int, clock: float) -> Plan:
        """Attempt after attempt until one brings enough results."""
        if self._to_plan:
            return Plan(self._chosen(self._cohort.clients, self._needed, number, 0, clock))
        waste, elapsed = Waste(), 0.0  # since the clock: an engine that is ahead asks with an older one
        minimum = self._settings.minimum
        short = Shortfall(minimum, self._settings.selection)
        for turn in range(MOST):
            able = self._there(clock + elapsed)
            if len(able) < minimum:
                elapsed += self._wait(number, clock + elapsed)
                able = self._there(clock + elapsed)
            one = self._attempt(able, number, turn, clock + elapsed)
            if len(one.counted) >= minimum:
                return self._plan(number, clock, elapsed, one, waste, turn)
            elapsed += one.seconds
            waste += self._wasted([*one.counted, *one.others], one.seconds)
            short.add(one.counted, one.others)
        raise CpflError(
            f"round {number} of cohort {self._cohort.number} brought fewer than federation.minimum = {minimum} results "
            f"in {MOST} attempts: {short}; lower it"
        )

    @property
    def _idle(self) -> list[int]:
        waiting = {begun.fate.client for begun in self._under_way.begun}
        return [client for client in self._cohort.clients if client not in waiting]

    def _there(self, clock: float) -> list[int]:
        return [client for client in self._idle if self._cohort.until(client, clock) > clock]

    def _wait(self, number: int, clock: float) -> float:
        """Seconds until as many are there at once as a round needs."""
        minimum = self._settings.minimum
        there = together(self._cohort, self._idle, minimum, clock)
        if there is None:
            days = horizon(self._cohort, self._idle) / DAY
            raise SettingError(
                f"federation.minimum = {minimum} is more than ever are there at once, in the {days:g} days from round "
                f"{number} of cohort {self._cohort.number} on (devices.availability): lower it"
            )
        return there - clock + ROUNDING  # not a float's last digit too early

    def _attempt(self, able: Sequence[int], number: int, turn: int, clock: float) -> Attempt:
        cohort = self._cohort
        chosen = self._chosen(able, min(self._asked, len(able)), number, turn, clock)
        fates = [
            foresee(cohort, client, self._fitting(client), clock, self._crash_rate, self._seed, number, turn)
            for client in chosen
        ]
        return attempt(fates, self._needed, self._settings.deadline)

    def _fitting(self, client: int) -> int:
        """The steps of a client: all, or as many as fit before the deadline; at least one, which then is late."""
        steps = self._cohort.steps(client)
        if self._settings.late != "partial":
            return steps
        time = self._settings.deadline - self._cohort.transferring(client) + ROUNDING
        return max(1, min(steps, int(time / self._cohort.computing(client, 1))))

    def _plan(self, number: int, clock: float, elapsed: float, one: Attempt, waste: Waste, repeats: int) -> Plan:
        cohort, begins = self._cohort, clock + elapsed
        end = begins + one.seconds
        counted = {fate.client: fate for fate in one.counted}
        lost, after, stale = list(one.others), list[Begun](), dict[int, int]()
        if self._stale:
            late = [fate for fate in one.others if fate.arrives]
            lost = [fate for fate in one.others if not fate.arrives]
            for begun in [*self._under_way.begun, *(Begun(number, begins, fate) for fate in late)]:
                if number - begun.round > self._settings.stale_rounds:
                    waste += self._wasted([begun.fate], end - begun.began)
                elif begun.ends <= end and begun.round < number:
                    counted[begun.fate.client], stale[begun.fate.client] = begun.fate, begun.round
                else:
                    after.append(begun)
        waste += self._wasted(lost, one.seconds)
        fates = [counted[client] for client in sorted(counted)]
        timing = Timing(
            seconds=elapsed + one.seconds,
            slowest=one.slowest,
            cpu_seconds=sum(fate.computing for fate in fates) + waste.cpu_seconds,
            bytes=2 * self._bytes * len(fates) + waste.bytes,
            waste=waste,
            repeats=repeats,
        )
        steps = {fate.client: fate.steps for fate in fates if fate.steps != cohort.steps(fate.client)}
        return Plan([fate.client for fate in fates], steps, stale, timing, after)

    def _wasted(self, fates: Sequence[Fate], seconds: float) -> Waste:
        """What these had spent by then: each was sent the model, those that had arrived sent theirs back."""
        waste = Waste()
        for fate in fates:
            back = fate.arrives and fate.lasts <= seconds
            waste += Waste(fate.spent(seconds), self._bytes * (1 + back))
        return waste

    def _chosen(self, able: Sequence[int], wanted: int, number: int, turn: int, clock: float) -> list[int]:
        address = (number, turn) if turn else (number,)
        rng = stream(self._seed, "selection", self._cohort.number, *address)
        chosen = [int(client) for client in self._selection.choose(able, wanted, number, rng, clock)]
        everybody = len(able) == len(self._everybody)
        given = self._everybody.holds(chosen) if everybody else frozenset(able).issuperset(chosen)
        if not (given and 0 < len(set(chosen)) == len(chosen) <= wanted):
            raise CpflError(
                f"federation.selection = {self._settings.selection!r} chose {chosen[:20]} in round {number} of cohort "
                f"{self._cohort.number}: it must be 1 to {wanted} different ones of the clients that it was given"
            )
        return sorted(chosen)

    def close(
        self, plan: Plan, number: int, model: State, results: Sequence[ClientResult], seconds: float, clock: float
    ) -> None:
        """What the round brought is learnt, and who is still under way."""
        self._selection.learn(number, results, seconds, clock)
        self._under_way.close(number, model, plan.after)

    def state(self) -> tuple[dict[int, State], dict[str, Any]]:
        """The selection's, and what is under way: copied, for a part of the user's may go on writing into its own."""
        models, numbers = self._under_way.state()
        return models, {**numbers, "selection": copy.deepcopy(self._selection.state())}

    def restore(self, models: dict[int, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._under_way.restore(models, numbers)
        self._selection.restore(copy.deepcopy(numbers["selection"]))
