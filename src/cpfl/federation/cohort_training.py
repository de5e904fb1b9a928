"""The rounds of one cohort: federated training as a state machine, sans-IO.

It says what to train and takes in the results; engines do the work in between. So selection, aggregation, stopping,
clock and accounting are written once, for a simulation and for a real fleet. How a cohort waits for others, and
continues after it has met them, is in session.py.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.base import Members
from cpfl.devices.fleet import Fleet
from cpfl.federation import optimizers
from cpfl.federation.intervals import MeetingInterval, Met
from cpfl.federation.messages import (
    NOTHING,
    AlgorithmState,
    ClosedRound,
    Cost,
    Origin,
    RoundRecord,
    RoundRequest,
    RoundResult,
    Snapshot,
)
from cpfl.federation.rounds.buffered import Buffered
from cpfl.federation.rounds.plan import RoundPlan, RoundPlanner
from cpfl.federation.rounds.synchronous import Synchronous
from cpfl.federation.selection.base import CohortInfo
from cpfl.federation.stopping import ROUNDING, limit_reached
from cpfl.models import State
from cpfl.models.layout import ema
from cpfl.settings import Experiment
from cpfl.settings.choices import STOPPING_RULES
from cpfl.settings.types import interval


class CohortTraining:
    """The training of one cohort, round after round, from the common initial model to its teacher model."""

    def __init__(
        self,
        cohort: int,
        clients: Sequence[int],
        experiment: Experiment,
        fleet: Fleet,
        model_bytes: int,
        start: State,
        sizes: NDArray[np.int64] | None = None,  # training samples of all clients: to plan rounds that can fail
    ) -> None:
        self.cohort, self.clients = cohort, Members(clients)
        self.model = start
        self.round, self.clock, self.cpu_seconds, self.samples = 0, 0.0, 0.0, 0
        self.bytes = 0.0  # with its share of evaluations and meetings
        self.stopped = ""  # the reason, once it has
        self.stop_request = ""  # a reason to stop with the next round that is closed
        self.best_round = 0  # the last round whose model was the best so far; 0: none
        self.phases = 0  # evaluations or meetings of the federation until the last one that it followed
        self.met = Met(0, 0.0)  # the last meeting
        hours = experiment.stopping.max_cpu_hours
        share = len(self.clients) / experiment.clients
        self.cpu_budget = hours * 3600 * share if hours else math.inf  # CPU seconds; joint shares them otherwise
        traffic = experiment.stopping.max_traffic_gb
        self.byte_budget = traffic * 1e9 * share if traffic else math.inf
        self.algorithm_state = AlgorithmState()
        self._experiment = experiment
        self._rule = STOPPING_RULES.build(experiment.stopping.rule, experiment.stopping.rule_args, experiment.stopping)
        self._interval = MeetingInterval.of(experiment)
        self._evaluated = not math.isinf(self._rule.eval_interval)  # together with the others, at the ends of phases
        self._model_bytes = model_bytes
        self._regrouped = False  # it has other clients than at the start
        self._arrived = False  # the next round would end after the next meeting
        self._kept: State | None = None
        self._shown = start  # the model that stands for the cohort: the newest, or the moving average
        known = np.zeros(0, np.int64) if sizes is None else sizes
        size = optimizers.one_way_bytes(experiment.federation, model_bytes)
        self._info = CohortInfo(cohort, self.clients, experiment.federation, fleet, size, known)
        self._planner = self._new_planner()
        self._plans: dict[int, RoundPlan] = {}  # of rounds that are not closed

    def _new_planner(self) -> RoundPlanner:
        kind = Buffered if self._experiment.federation.buffer_size else Synchronous
        return kind(self._info, self._experiment.devices.crash_rate, self._experiment.seed)

    def _regroup(self, clients: Sequence[int]) -> None:
        """Continue with other clients."""
        self.clients, self._regrouped = Members(clients), True
        self._info = replace(self._info, clients=self.clients)
        self._planner = self._new_planner()

    def open_round(self) -> RoundRequest:
        """The next round to train."""
        assert not self.idle, "a session that has stopped or waits opens no round"
        number, planner = self.round + 1, self._planner
        plan = self._plan(number)
        return RoundRequest(
            cohort=self.cohort,
            round=number,
            participants=plan.participants,
            model=self.model,
            algorithm_state=self.algorithm_state,
            cohort_size=len(self.clients),
            steps=plan.steps,
            origins={client: Origin(began, planner.models[began]) for client, began in plan.stale.items()},
            aggregation=planner.aggregation,
            squared_losses=planner.squared_losses,
        )

    def participants(self, number: int) -> list[int]:
        """Who takes part in a round. Nobody after the last round there can be, nor before it is known: a selection that
        needs the results of the last round selects when that is closed."""
        if number > min(self._experiment.max_rounds, self._phase_end, self._rule.last_round):
            return []
        return self._plan(number).participants if self._planner.plans_ahead or number == self.round + 1 else []

    def steps(self, number: int) -> dict[int, int]:
        """The participants of a round that do only so many of their steps."""
        return self._plan(number).steps

    def _plan(self, number: int) -> RoundPlan:
        if number not in self._plans:
            self._plans[number] = self._planner.plan(number, self.clock)
        return self._plans[number]

    def expected_cost(self) -> Cost:
        """What the next round will cost, by what devices and data say; a simulated fleet knows both."""
        return self._planner.expected(self._plan(self.round + 1))

    def close_round(self, outcome: RoundResult) -> ClosedRound:
        """Advance the clock, adopt the new model, and decide whether to stop."""
        results, number = outcome.results, self.round + 1
        reports = [r.validation for r in results if r.validation is not None]
        loss = sum(reports) / len(reports) if reports else None

        plan = self._plan(number)
        cost = self._planner.cost(plan, outcome)
        clock, cpu_seconds = self.clock + cost.seconds, self.cpu_seconds + cost.cpu_seconds
        self._planner.close(plan, number, self.model, results, cost.seconds, clock)
        del self._plans[number]
        decision = self._rule.update(number, loss, clock, cpu_seconds)
        if decision.best:
            self._kept, self.best_round = outcome.model, number

        before = Snapshot(self.cohort, self.round, self.clock, self._shown)
        self.model = outcome.model
        stopping = self._experiment.stopping
        averages = stopping.keep == "ema"
        averaged = number - self.met.round + bool(self.met.round)  # models: at a meeting the average begins anew
        self._shown = ema(self._shown, self.model, 1 / min(averaged, stopping.ema_rounds)) if averages else self.model
        self.algorithm_state = self.algorithm_state.updated(outcome.algorithm_state)
        self.round, self.clock, self.cpu_seconds = number, clock, cpu_seconds
        self.bytes += cost.bytes
        arrives = self._evaluated and number < self._experiment.max_rounds and self._next_is_too_late(outcome, cost)
        trained = sum(r.samples for r in results)
        self.samples += trained
        self.stopped = decision.stop or self._limit_reached(cost, arrives)
        self._arrived = not self.stopped and (arrives or self._next_is_too_late(outcome, cost))
        record = RoundRecord(
            cohort=self.cohort,
            round=self.round,
            participants=[r.client for r in results],
            loss=sum(r.loss for r in results) / len(results),
            validation=loss,
            reporting=len(reports),
            moving_average=decision.moving_average,
            best=decision.best,
            clock=self.clock,
            samples=trained,
            stop=self.stopped,
            excluded=outcome.excluded,
            stale=len(plan.stale),
            **vars(cost),
        )
        return ClosedRound(self._with_unfinished(record), self._due(before))

    def _with_unfinished(self, record: RoundRecord) -> RoundRecord:
        """The record with the work that is discarded because it is unfinished when a cohort stops."""
        lost = self._planner.unfinished(self.clock) if self.stopped else NOTHING
        self.cpu_seconds += lost.cpu_seconds
        self.bytes += lost.bytes
        return replace(
            record,
            cpu_seconds=record.cpu_seconds + lost.cpu_seconds,
            bytes=record.bytes + lost.bytes,
            wasted_cpu_seconds=record.wasted_cpu_seconds + lost.cpu_seconds,
            wasted_bytes=record.wasted_bytes + lost.bytes,
        )

    @property
    def idle(self) -> bool:
        """Nothing to train now: it has stopped, or waits."""
        return bool(self.stopped) or self.waiting

    def teacher(self) -> State:
        """The model that this cohort contributes: the best by validation, else the newest or the moving average of late
        ones; joint evaluates one of those two, and cohorts that meet have no best of their own."""
        together = self._experiment.meets or self._evaluated
        if self._experiment.stopping.keep == "best" and not together and self._kept is not None:
            return self._kept
        return self._shown

    def state(self) -> tuple[dict[str, State], dict[str, Any]]:
        """Models and numbers from which the session continues exactly as it would have."""
        states, newest = {"model": self.model}, self._kept is self.model
        if self._kept is not None and not newest:
            states["kept"] = self._kept
        if self._experiment.stopping.keep == "ema":
            states["average"] = self._shown
        states |= self.algorithm_state.states()
        numbers = {key: getattr(self, key) for key in _NUMBERS}
        states |= {f"{_OLDER}{number}": model for number, model in self._planner.models.items()}
        if self.phases and not math.isinf(self.cpu_budget):
            numbers["cpu_budget"] = self.cpu_budget
        if self.phases and not math.isinf(self.byte_budget):
            numbers["byte_budget"] = self.byte_budget
        if self.met.round:
            numbers["met"] = list(self.met)
        if self._regrouped:
            numbers["clients"] = list(self.clients)
        numbers |= {"kept_is_newest": newest, "rule": self._rule.state(), "planner": self._planner.state()}
        return states, copy.deepcopy(numbers)  # a user's rule may continue to write into its own

    def restore(self, states: dict[str, State], numbers: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        numbers = copy.deepcopy(numbers)
        self.model = states["model"]
        self._shown = states.get("average", self.model)
        self.algorithm_state = AlgorithmState.from_states(states)
        self._kept = self.model if numbers["kept_is_newest"] else states.get("kept")
        for key in _NUMBERS:
            setattr(self, key, numbers[key])
        self.cpu_budget = numbers.get("cpu_budget", self.cpu_budget)
        self.byte_budget = numbers.get("byte_budget", self.byte_budget)
        self.met = Met(*numbers.get("met", (0, 0.0)))
        if "clients" in numbers:
            self._regroup(numbers["clients"])
        self._rule.restore(numbers["rule"])
        older = {int(kind.removeprefix(_OLDER)): one for kind, one in states.items() if kind.startswith(_OLDER)}
        self._plans.clear()
        self._planner.restore(older, numbers["planner"])

    def _limit_reached(self, last: Cost | RoundRecord, arrives: bool = False) -> str:
        """The limit that another round like the last one would exceed; `arrives`: it is to be evaluated before."""
        if self.stop_request:
            return self.stop_request
        e, clock, cpu_seconds = self._experiment, self.clock + last.seconds, self.cpu_seconds + last.cpu_seconds
        budgets = self.cpu_budget, self.byte_budget
        if self._evaluated and (arrives or self.round >= self._phase_end):
            budgets = math.inf, math.inf  # an evaluation shares them anew
        sent = self.bytes + last.bytes + self.reserved_bytes
        return limit_reached(e.stopping, e.max_rounds, self.round, clock, cpu_seconds, budgets[0], sent, budgets[1])

    def _due(self, before: Snapshot) -> list[Snapshot]:
        """The snapshots since that moment: every so many rounds or hours, and the last model."""
        if not self._experiment.snapshots:
            return []
        kind, size = interval(self._experiment.snapshots)
        found = []
        # Multiples of the interval that lie before a clock; one that is reached exactly is not passed yet.
        passed = [math.ceil((clock - ROUNDING) / size) for clock in (before.clock, self.clock)]
        # The common initial model and those of meetings are kept anyway.
        kept = before.round == 0 or Met(before.round, before.clock) == self.met
        if kind == "seconds" and passed[1] > passed[0] and not kept:
            found.append(before)
        if self.stopped or (kind == "rounds" and self.round % size == 0):
            found.append(Snapshot(self.cohort, self.round, self.clock, self._shown))
        return found

    # A cohort alone never waits: what a session overrides.

    @property
    def waiting(self) -> bool:
        """At the end of a phase, waiting until all cohorts are evaluated or meet."""
        return False

    @property
    def reserved_bytes(self) -> int:
        """What of a limit in traffic is kept back: the cohort's model at the end."""
        return self._model_bytes

    @property
    def _phase_end(self) -> float:
        """The round after which it waits next; inf: after none, or at a time."""
        return math.inf

    def _next_is_too_late(self, outcome: RoundResult, cost: Cost) -> bool:
        """Whether the next round would end after the next meeting."""
        return False


_OLDER = "began-"  # names of models that pending work began with
_NUMBERS = ("round", "clock", "cpu_seconds", "bytes", "samples", "stopped", "best_round", "phases")
