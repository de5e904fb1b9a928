"""One cohort's federated training as a state machine, sans-IO.

The session says what to train and is told what came back; engines do the work in between. So selection, aggregation,
stopping, clock and accounting are written once, for a simulation and for a real fleet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.cohorts.members import Members
from cpfl.devices import Fleet
from cpfl.experiment import Experiment
from cpfl.federation import accounting, averaging, enough, parts, records
from cpfl.federation.buffered import Buffered
from cpfl.federation.memory import Memory
from cpfl.federation.records import Closed, RoundRecord, Snapshot
from cpfl.federation.reports import ClientResult, Origin, Outcome, Work
from cpfl.federation.round_plan import Plan, Planner, Waste
from cpfl.federation.rounds import Rounds
from cpfl.federation.selection import Cohort
from cpfl.federation.stopping import Plateau, reason_to_stop
from cpfl.models import State

__all__ = ["ClientResult", "Closed", "Origin", "Outcome", "RoundRecord", "Session", "Snapshot", "Work"]


class Session:
    """A cohort on its way from the common start to its teacher model."""

    def __init__(
        self,
        cohort: int,
        clients: Sequence[int],
        experiment: Experiment,
        fleet: Fleet,
        model_bytes: int,
        start: State,
        sizes: NDArray[np.int64] | None = None,  # training samples of all clients: to plan rounds that may go wrong
    ) -> None:
        self.cohort, self.clients = cohort, Members(clients)
        self.model = start
        self.round, self.clock, self.cpu_seconds, self.bytes, self.samples = 0, 0.0, 0.0, 0, 0
        self.stopped = ""  # the reason, once it has
        self.legs = 0  # stopping rule joint: those that are over and judged
        hours = experiment.stopping.cpu_hours
        share = len(self.clients) / experiment.clients
        self.allowed = hours * 3600 * share if hours else math.inf  # CPU seconds; joint shares them out otherwise
        self.memory = Memory()
        self._experiment = experiment
        self._plateau = Plateau(experiment.stopping.window)
        self._kept: State | None = None
        self._average = start
        known = np.zeros(0, np.int64) if sizes is None else sizes
        size = parts.one_way_bytes(experiment.federation, model_bytes)
        self._about = Cohort(cohort, self.clients, experiment.federation, fleet, size, known)
        enough.check(self._about, experiment.devices.crash_rate)
        kind = Buffered if experiment.federation.buffer else Rounds
        self._planner: Planner = kind(self._about, experiment.devices.crash_rate, experiment.seed)
        self._plans: dict[int, Plan] = {}  # of rounds that are not closed

    def open_round(self) -> Work:
        """What to do next."""
        assert not self.idle, "a session that has stopped or waits opens no round"
        number, planner = self.round + 1, self._planner
        plan = self._planned(number)
        return Work(
            cohort=self.cohort,
            round=number,
            participants=plan.participants,
            model=self.model,
            memory=self.memory,
            size=len(self.clients),
            steps=plan.steps,
            origins={client: Origin(began, planner.model(began)) for client, began in plan.stale.items()},
            rule=planner.rule,
            squares=planner.squares,
        )

    def participants(self, number: int) -> list[int]:
        """Who takes part in a round; nobody after the last there can be, nor before it can be known: a selection that
        needs the last round's outcome is asked again when that is closed."""
        e = self._experiment
        if number > min(e.max_rounds, self._leg_end, e.stopping.rounds if e.stopping.rule == "rounds" else number):
            return []
        return self._planned(number).participants if self._planner.ahead or number == self.round + 1 else []

    def steps(self, number: int) -> dict[int, int]:
        """The participants of a round that do only so many of their steps."""
        return self._planned(number).steps

    def _planned(self, number: int) -> Plan:
        if number not in self._plans:
            self._plans[number] = self._planner.plan(number, self.clock)
        return self._plans[number]

    def close_round(self, outcome: Outcome) -> Closed:
        """Advance the clock, adopt the new model, judge it, decide whether to go on."""
        results = outcome.results
        reports = [r.validation for r in results if r.validation is not None]
        value = sum(reports) / len(reports) if reports else None
        average, best = self._plateau.judge(self.round + 1, value)
        if best:  # the judged model is the one that is kept
            self._kept = outcome.model

        plan = self._planned(self.round + 1)
        timing = plan.timing or accounting.timing(self._about, outcome)
        seconds, cpu_seconds, sent, waste = timing.seconds, timing.cpu_seconds, timing.bytes, timing.waste
        self._planner.close(plan, self.round + 1, self.model, results, seconds, self.clock + seconds)
        del self._plans[self.round + 1]

        before = Snapshot(self.cohort, self.round, self.clock, self._shown)
        self.model = outcome.model
        if self._averages:
            share = 1 / min(self.round + 1, self._experiment.stopping.late)
            self._average = averaging.blended(self._average, self.model, share)
        self.memory = self.memory.after(outcome.memory)
        self.round += 1
        self.clock += seconds
        self.cpu_seconds += cpu_seconds
        self.bytes += sent
        trained = sum(r.samples for r in results)
        self.samples += trained
        self.stopped = self._reason_to_stop(seconds, cpu_seconds)
        record = RoundRecord(
            cohort=self.cohort,
            round=self.round,
            participants=[r.client for r in results],
            loss=sum(r.loss for r in results) / len(results),
            validation=value,
            reporting=len(reports),
            average=average,
            best=best,
            seconds=seconds,
            clock=self.clock,
            slowest=timing.slowest,
            cpu_seconds=cpu_seconds,
            bytes=sent,
            samples=trained,
            stop=self.stopped,
            left_out=outcome.left_out,
            repeats=timing.repeats,
            stale=len(plan.stale),
            wasted_cpu_seconds=waste.cpu_seconds,
            wasted_bytes=waste.bytes,
        )
        return Closed(self._ended(record), self._due(before))

    def _ended(self, record: RoundRecord) -> RoundRecord:
        """What is still under way when a cohort stops comes to nothing."""
        lost = self._planner.under_way(self.clock) if self.stopped else Waste()
        if lost == Waste():
            return record
        self.cpu_seconds += lost.cpu_seconds
        self.bytes += lost.bytes
        return record.with_waste(lost)

    @property
    def paused(self) -> bool:
        """At the end of a leg, waiting for the federation to be judged."""
        return not self.stopped and self.round >= self._leg_end

    @property
    def idle(self) -> bool:
        """Nothing to do for an engine now: it has stopped, or waits."""
        return bool(self.stopped) or self.paused

    def go_on(self, closed: Closed, clock: float, cpu_seconds: float, allowed: float = math.inf) -> Closed:
        """The judgement, over at this moment and paid for with so much, asks for another leg: unless a limit speaks
        against it, such as what all rounds may cost from now on. What the last round of the leg had yielded, and what
        the wait adds to it."""
        arrived, record = self.clock, closed.record
        self.legs += 1
        self.clock, self.cpu_seconds, self.allowed = clock, self.cpu_seconds + cpu_seconds, allowed
        self.stopped = self._reason_to_stop(record.seconds, record.cpu_seconds)
        return self._waited(closed, arrived)

    def stop(self, closed: Closed, reason: str, clock: float | None = None) -> Closed:
        """End with the leg: as the judgement says that is over at this moment, or without one."""
        arrived = self.clock
        self.clock, self.stopped = arrived if clock is None else clock, reason
        return self._waited(closed, arrived)

    def _waited(self, closed: Closed, arrived: float) -> Closed:
        """The round ended when it did, whatever came after; but a moment to keep the model may have passed since."""
        kept = {snapshot.round for snapshot in closed.snapshots}
        due = self._due(Snapshot(self.cohort, self.round, arrived, self._shown)) if self.round not in kept else []
        snapshots = [replace(snapshot, clock=arrived) for snapshot in due[:1]]
        return Closed(self._ended(replace(closed.record, stop=self.stopped)), [*closed.snapshots, *snapshots])

    @property
    def alone(self) -> bool:
        """A cohort of one client has neither traffic nor transfer time."""
        return len(self.clients) == 1

    @property
    def best_round(self) -> int:
        """The round in which the moving average made its last new minimum; 0: never."""
        return self._plateau.best_round

    def teacher(self) -> State:
        """The model this cohort contributes: the best by validation, else the newest or the average of late ones; joint
        judges one of those."""
        stopping = self._experiment.stopping
        if stopping.keep == "best" and stopping.rule != "joint" and self._kept is not None:
            return self._kept
        return self._shown

    def state(self) -> tuple[dict[str, State], dict[str, Any]]:
        """Models and numbers from which the session goes on exactly as it would have."""
        states, newest = {"model": self.model}, self._kept is self.model
        if self._kept is not None and not newest:
            states["kept"] = self._kept
        if self._averages:
            states["average"] = self._average
        states |= self.memory.states()
        numbers = {key: getattr(self, key) for key in _NUMBERS}
        older, planned = self._planner.state()
        states |= {f"{_OLDER}{number}": model for number, model in older.items()}
        if self.legs and not math.isinf(self.allowed):
            numbers["allowed"] = self.allowed
        known = {"legs": self.legs, "kept_is_newest": newest, "plateau": self._plateau.state(), "planner": planned}
        return states, numbers | known

    def restore(self, states: dict[str, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model = states["model"]
        self._average = states.get("average", self.model)
        self.memory = Memory.of(states)
        self._kept = self.model if numbers["kept_is_newest"] else states.get("kept")
        for key in _NUMBERS:
            setattr(self, key, numbers[key])
        self.legs = numbers.get("legs", 0)  # runs of the other rules may be older than this number
        self.allowed = numbers.get("allowed", self.allowed)
        self._plateau.restore(numbers["plateau"])
        older = {int(kind.removeprefix(_OLDER)): one for kind, one in states.items() if kind.startswith(_OLDER)}
        self._plans.clear()
        if "planner" in numbers:  # a run may be older than this
            self._planner.restore(older, numbers["planner"])

    @property
    def _averages(self) -> bool:
        return self._experiment.stopping.keep == "average"

    @property
    def _shown(self) -> State:
        """The model that stands for the cohort now."""
        return self._average if self._averages else self.model

    @property
    def _leg_end(self) -> float:
        """The round at which it waits next."""
        stopping = self._experiment.stopping
        return (self.legs + 1) * stopping.every if stopping.rule == "joint" else math.inf

    def _reason_to_stop(self, seconds: float, cpu_seconds: float) -> str:
        e, last = self._experiment, (seconds, cpu_seconds)
        allowed = math.inf if self.round >= self._leg_end else self.allowed  # a judgement shares out anew
        return reason_to_stop(
            e.stopping, e.max_rounds, self.round, self._plateau, self.clock, self.cpu_seconds, last, allowed
        )

    def _due(self, before: Snapshot) -> list[Snapshot]:
        after = Snapshot(self.cohort, self.round, self.clock, self._shown)
        return records.due(self._experiment.snapshots, before, after, bool(self.stopped))


_OLDER = "began-"  # kinds of models that work under way began with
_NUMBERS = ("round", "clock", "cpu_seconds", "bytes", "samples", "stopped")
