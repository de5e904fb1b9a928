"""Synchronous rounds, and what can go wrong in them: stragglers, deadlines, absence and crashes."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from typing import Any

from cpfl.cohorts.base import Members
from cpfl.errors import CpflError, SettingError
from cpfl.federation.messages import NOTHING, Cost
from cpfl.federation.rounds.plan import MAX_ATTEMPTS, ClientOutcome, RoundPlan, RoundPlanner
from cpfl.federation.selection.base import CohortInfo, participants_per_round
from cpfl.federation.stopping import ROUNDING
from cpfl.models import State
from cpfl.randomness import stream
from cpfl.settings.choices import SELECTIONS

DAY = 24 * 3600.0
OVERLAP = 2 * ROUNDING  # seconds for which clients must be available together: the server begins one rounding later
PERIODS = 4  # of the longest schedule: how long to search where periods differ in length


@dataclass(frozen=True)
class Attempt:
    """How one attempt at a round proceeds, in seconds since it began."""

    seconds: float
    slowest: int  # the client that all others waited for
    counted: list[ClientOutcome]  # in client order
    others: list[ClientOutcome]


def attempt(outcomes: Sequence[ClientOutcome], needed: int, deadline: float) -> Attempt:
    """The first `needed` clients to arrive count, and the round ends with the last of them. If fewer arrive, it ends
    when all have arrived or are lost, or at the deadline (0: none)."""
    limit = deadline + ROUNDING if deadline else math.inf
    order = sorted(outcomes, key=lambda outcome: (outcome.lasts, outcome.client))
    counted = [outcome for outcome in order if outcome.arrives and outcome.lasts <= limit][:needed]
    last = order[-1]
    if len(counted) == needed:
        last, seconds = counted[-1], counted[-1].lasts
    else:
        seconds = last.lasts if last.lasts <= limit else deadline
    counted.sort(key=lambda outcome: outcome.client)
    clients = {outcome.client for outcome in counted}
    return Attempt(seconds, last.client, counted, [outcome for outcome in outcomes if outcome.client not in clients])


class Synchronous(RoundPlanner):
    """Plans the rounds of one cohort."""

    def __init__(self, cohort: CohortInfo, crash_rate: float, seed: int) -> None:
        super().__init__(cohort, crash_rate, seed)
        settings = self._settings
        self._needed = participants_per_round(settings, len(cohort.clients))
        if settings.min_results > self._needed:
            raise SettingError(
                f"federation.min_results = {settings.min_results} is more than the {self._needed} clients that take "
                f"part in a round of cohort {cohort.number}: 1 to {self._needed}"
            )
        more = math.ceil(self._needed * (1 + settings.over_selection) - 1e-9)
        self._selected = min(more, len(cohort.clients))
        self._selection = SELECTIONS.build(settings.selection, settings.selection_args, cohort)
        self.squared_losses = self._selection.squared_losses
        self._stale = settings.straggler_policy == "stale"
        self.aggregation = "refl" if self._stale else "mean"
        always = cohort.fleet.availability is None
        self.plans_ahead = self._selection.plans_ahead and always and not self._stale
        self._undisturbed = always and not (settings.over_selection or settings.deadline or crash_rate)
        if settings.min_results > 1 and not always:
            self._wait(1, 0.0)  # so many may never be available at once: refuse that before anybody trains
        if settings.deadline and always and len(cohort.sizes):
            self._check_deadline()

    def plan(self, number: int, clock: float) -> RoundPlan:
        """Attempt after attempt until one returns enough results."""
        if self._undisturbed:
            return RoundPlan(self._select(self._cohort.clients, self._needed, number, 0, clock))
        waste, elapsed = NOTHING, 0.0  # since the clock: an engine that is ahead plans with an older one
        minimum, failures = self._settings.min_results, Counter[str]()
        for turn in range(MAX_ATTEMPTS):
            able = self._available(clock + elapsed, self._pending)
            if len(able) < minimum:
                elapsed += self._wait(number, clock + elapsed)
                able = self._available(clock + elapsed, self._pending)
            selected = self._select(able, min(self._selected, len(able)), number, turn, clock + elapsed)
            outcomes = [self._predict(c, self._steps(c), clock + elapsed, number, turn) for c in selected]
            one = attempt(outcomes, self._needed, self._settings.deadline)
            if len(one.counted) >= minimum:
                return self._plan(number, clock, elapsed, one, waste, turn)
            elapsed += one.seconds
            waste += self._wasted_by([*one.counted, *one.others], one.seconds)
            failures["few"] += len(one.counted) + len(one.others) < minimum
            failures.update("late" if o.arrives else "crashed" if o.crashed else "left" for o in one.others)
        causes = {
            "left": "clients left {} times (devices.availability)",
            "crashed": "clients crashed {} times (devices.crash_rate)",
            "late": "clients were late {} times (federation.deadline)",
            "few": f"federation.selection = {self._settings.selection!r} chose fewer {{}} times",
        }
        why = ", ".join(text.format(failures[cause]) for cause, text in causes.items() if failures[cause])
        raise CpflError(
            f"round {number} of cohort {self._cohort.number} returned fewer than federation.min_results = {minimum} "
            f"results in {MAX_ATTEMPTS} attempts: {why}; lower it"
        )

    def _wait(self, number: int, clock: float) -> float:
        """Seconds until as many clients are available at once as a round needs."""
        minimum, idle = self._settings.min_results, self._idle(self._pending)
        moment = first_time_together(self._cohort, idle, minimum, clock)
        if moment is None:
            days = horizon(self._cohort, idle) / DAY
            raise SettingError(
                f"federation.min_results = {minimum} is more than are ever available at once, in the {days:g} days "
                f"from round {number} of cohort {self._cohort.number} on (devices.availability): lower it"
            )
        return moment - clock + ROUNDING  # not a float's last digit too early

    def _check_deadline(self) -> None:
        """Refuse a deadline that too few clients can ever meet."""
        cohort, least = self._cohort, self._settings.min_results
        rounds = (cohort.compute_seconds(c, self._steps(c)) + cohort.transfer_seconds(c) for c in cohort.clients)
        shortest = nsmallest(least, rounds)[-1]
        if shortest > self._settings.deadline + ROUNDING:
            needed = f" with federation.min_results = {least}" if least > 1 else ""
            raise SettingError(
                f"federation.deadline = {self._settings.deadline:g} is too short: the shortest possible round of "
                f"cohort {cohort.number}{needed} lasts {math.ceil(100 * shortest) / 100:.2f} virtual seconds"
            )

    def _steps(self, client: int) -> int:
        """All steps of a client, or as many as fit before the deadline; at least one, which then is late."""
        steps = self._cohort.steps(client)
        if self._settings.straggler_policy != "partial":
            return steps
        time = self._settings.deadline - self._cohort.transfer_seconds(client) + ROUNDING
        return max(1, min(steps, int(time / self._cohort.compute_seconds(client, 1))))

    def _plan(self, number: int, clock: float, elapsed: float, one: Attempt, waste: Cost, repeats: int) -> RoundPlan:
        end = clock + elapsed + one.seconds
        counted = {outcome.client: outcome for outcome in one.counted}
        pending, stale = list[ClientOutcome](), dict[int, int]()
        late = [outcome for outcome in one.others if self._stale and outcome.arrives]
        for work in [*self._pending, *late]:
            if number - work.round > self._settings.max_staleness:
                waste += self._wasted_by([work], end - work.began)
            elif work.ends <= end and work.round < number:
                counted[work.client], stale[work.client] = work, work.round
            else:
                pending.append(work)
        waste += self._wasted_by([o for o in one.others if not (self._stale and o.arrives)], one.seconds)
        outcomes = [counted[client] for client in sorted(counted)]
        cost = self._cost(outcomes, elapsed + one.seconds, one.slowest, waste, repeats)
        steps = {o.client: o.steps for o in outcomes if o.steps != self._cohort.steps(o.client)}
        return RoundPlan([outcome.client for outcome in outcomes], steps, stale, cost, pending)

    def _wasted_by(self, outcomes: Sequence[ClientOutcome], seconds: float) -> Cost:
        """What these clients had spent by then."""
        return sum((self._wasted(outcome, seconds, outcome.lasts <= seconds) for outcome in outcomes), NOTHING)

    def _select(self, able: Sequence[int], count: int, number: int, turn: int, clock: float) -> list[int]:
        address = (number, turn) if turn else (number,)
        rng = stream(self._seed, "selection", self._cohort.number, *address)
        selected = [int(client) for client in self._selection.select(able, count, number, rng, clock)]
        if not (Members(able).holds(selected) and 0 < len(set(selected)) == len(selected) <= count):
            raise CpflError(
                f"federation.selection = {self._settings.selection!r} chose {selected[:20]} in round {number} of "
                f"cohort {self._cohort.number}: it must be 1 to {count} different ones of the clients that it was given"
            )
        return sorted(selected)

    def state(self) -> dict[str, Any]:
        """With the selection's."""
        return {**super().state(), "selection": self._selection.state()}

    def restore(self, models: dict[int, State], state: dict[str, Any]) -> None:
        super().restore(models, state)
        self._selection.restore(state["selection"])


def first_time_together(cohort: CohortInfo, clients: Sequence[int], wanted: int, clock: float) -> float | None:
    """The first moment from `clock` on at which so many of these clients are available at once; None: there is none."""
    last, here = clock + horizon(cohort, clients), 0
    events = [(cohort.available_from(client, clock), True, client) for client in clients]  # departures sort first
    heapify(events)
    while events and events[0][0] <= last:
        now, comes, client = heappop(events)
        here += 1 if comes else -1
        leaves = cohort.available_until(client, now) if comes else now + OVERLAP
        if comes and leaves > now + OVERLAP:
            if here >= wanted:
                return now
            heappush(events, (leaves - OVERLAP, False, client))
        else:
            here -= comes  # for a moment only
            heappush(events, (cohort.available_from(client, leaves), True, client))
    return None


def horizon(cohort: CohortInfo, clients: Iterable[int]) -> float:
    """How many seconds to search: schedules of one period repeat together."""
    availability = cohort.fleet.availability
    periods = {availability.schedule(client).period for client in clients} if availability else set()
    return max(periods, default=0.0) * (1 if len(periods) == 1 else PERIODS)
