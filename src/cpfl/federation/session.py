"""One cohort's federated training as a state machine, sans-IO.

The session says what to train and is told what came back; engines do the work in between. So selection, aggregation,
stopping, clock and accounting are written once, for a simulation and for a real fleet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cpfl.devices import Fleet
from cpfl.experiment import Experiment, interval
from cpfl.federation import selection
from cpfl.federation.stopping import ROUNDING, Plateau, reason_to_stop
from cpfl.models import State


@dataclass(frozen=True)
class Work:
    """A round to be done: who trains, from which model."""

    cohort: int
    round: int  # counted from 1
    participants: list[int]
    model: State


@dataclass(frozen=True)
class ClientResult:
    """What a participant reports beside its model."""

    client: int
    samples: int  # trained on in this round
    steps: int
    loss: float  # mean training loss over the steps
    validation: float | None  # loss of the cohort's new model on the client's validation set
    computing: float | None = None  # measured seconds of training; None: what the fleet says
    lasting: float | None = None  # measured seconds from the call to the answer


@dataclass(frozen=True)
class Outcome:
    """A round that was done: the aggregated model and the participants' reports."""

    model: State
    results: list[ClientResult]
    seconds: float | None = None  # measured length of the round; None: what the fleet says
    bytes: int | None = None  # measured traffic
    left_out: dict[int, str] = field(default_factory=dict)  # participants whose work is not in the model, and why


@dataclass(frozen=True)
class RoundRecord:
    """One line of a cohort's records."""

    cohort: int
    round: int
    participants: list[int]
    loss: float  # plain mean over participants
    validation: float | None  # plain mean over reporting participants
    reporting: int
    average: float | None  # moving average of `validation`
    best: bool  # the judged model became the one to keep
    seconds: float  # virtual length of the round
    clock: float  # the cohort's virtual seconds after it
    slowest: int  # the client everybody waited for
    cpu_seconds: float
    bytes: int
    samples: int
    stop: str  # why the cohort ended with this round; empty: it did not
    left_out: dict[int, str] = field(default_factory=dict)  # participants whose work is not in it, and why

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Snapshot:
    """A cohort's model as it was after `round`, at `clock` virtual seconds."""

    cohort: int
    round: int
    clock: float
    model: State


@dataclass(frozen=True)
class Closed:
    """What closing a round yields: its record, and snapshots that fell due."""

    record: RoundRecord
    snapshots: list[Snapshot]


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
    ) -> None:
        self.cohort, self.clients = cohort, list(clients)
        self.model = start
        self.round, self.clock, self.cpu_seconds, self.bytes, self.samples = 0, 0.0, 0.0, 0, 0
        self.stopped = ""  # the reason, once it has
        self._experiment, self._fleet, self._model_bytes = experiment, fleet, model_bytes
        self._plateau = Plateau(experiment.stopping.window)
        self._kept: State | None = None

    def open_round(self) -> Work:
        """What to do next."""
        assert not self.stopped, "a stopped session opens no round"
        return Work(self.cohort, self.round + 1, self.participants(self.round + 1), self.model)

    def participants(self, number: int) -> list[int]:
        """Who takes part in a round, known before the one before it is judged; nobody after the last there can be."""
        e = self._experiment
        last = min(e.max_rounds, e.stopping.rounds) if e.stopping.rule == "rounds" else e.max_rounds
        if number > last:
            return []
        return selection.select(self.clients, e.federation, e.seed, self.cohort, number)

    def close_round(self, outcome: Outcome) -> Closed:
        """Advance the clock, adopt the new model, judge it, decide whether to go on."""
        results = outcome.results
        reports = [r.validation for r in results if r.validation is not None]
        value = sum(reports) / len(reports) if reports else None
        average, best = self._plateau.judge(self.round + 1, value)
        if best:  # the judged model is the one that is kept
            self._kept = outcome.model

        computing = {r.client: self._computing(r) for r in results}
        lasting = {r.client: self._lasting(r, computing[r.client]) for r in results}
        slowest = max(lasting, key=lambda client: lasting[client])
        seconds = lasting[slowest] if outcome.seconds is None else outcome.seconds
        cpu_seconds = sum(computing.values())
        sent = 0 if self.alone else 2 * self._model_bytes * len(results)
        if outcome.bytes is not None:
            sent = outcome.bytes

        before = Snapshot(self.cohort, self.round, self.clock, self.model)
        self.model = outcome.model
        self.round += 1
        self.clock += seconds
        self.cpu_seconds += cpu_seconds
        self.bytes += sent
        trained = sum(r.samples for r in results)
        self.samples += trained
        self.stopped = reason_to_stop(
            self._experiment.stopping,
            self._experiment.max_rounds,
            self.round,
            self._plateau,
            self.clock,
            self.cpu_seconds,
            (seconds, cpu_seconds),
            len(self.clients) / self._experiment.clients,
        )
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
            slowest=slowest,
            cpu_seconds=cpu_seconds,
            bytes=sent,
            samples=trained,
            stop=self.stopped,
            left_out=outcome.left_out,
        )
        return Closed(record, self._due(before))

    @property
    def alone(self) -> bool:
        """A cohort of one client has neither traffic nor transfer time."""
        return len(self.clients) == 1

    @property
    def best_round(self) -> int:
        """The round in which the moving average made its last new minimum; 0: never."""
        return self._plateau.best_round

    def teacher(self) -> State:
        """The model this cohort contributes: the best by validation, or the newest."""
        if self._experiment.stopping.keep == "best" and self._kept is not None:
            return self._kept
        return self.model

    def state(self) -> tuple[dict[str, State], dict[str, Any]]:
        """Models and numbers from which the session goes on exactly as it would have."""
        states, newest = {"model": self.model}, self._kept is self.model
        if self._kept is not None and not newest:
            states["kept"] = self._kept
        numbers = {key: getattr(self, key) for key in _NUMBERS}
        return states, {**numbers, "kept_is_newest": newest, "plateau": self._plateau.state()}

    def restore(self, states: dict[str, State], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model = states["model"]
        self._kept = self.model if numbers["kept_is_newest"] else states.get("kept")
        for key in _NUMBERS:
            setattr(self, key, numbers[key])
        self._plateau.restore(numbers["plateau"])

    def _computing(self, result: ClientResult) -> float:
        if result.computing is not None:
            return result.computing
        return self._fleet.training_seconds(result.client, result.steps, self._experiment.federation.batch_size)

    def _lasting(self, result: ClientResult, computing: float) -> float:
        return computing + self._transferring(result.client) if result.lasting is None else result.lasting

    def _transferring(self, client: int) -> float:
        return 0.0 if self.alone else 2 * self._fleet.transfer_seconds(client, self._model_bytes)

    def _due(self, before: Snapshot) -> list[Snapshot]:
        """Every so many rounds, or the model that was current when a multiple of so many hours passed; and the last."""
        if not self._experiment.snapshots:
            return []
        kind, size = interval(self._experiment.snapshots)
        after = Snapshot(self.cohort, self.round, self.clock, self.model)
        due = []
        passed = kind == "seconds" and _passed(self.clock, size) > _passed(before.clock, size)
        if passed and before.round:  # the common start is kept anyway
            due.append(before)
        if self.stopped or (kind == "rounds" and self.round % size == 0):
            due.append(after)
        return due


def _passed(clock: float, size: float) -> int:
    """Multiples of an interval that lie before the clock; one that is reached exactly is not passed yet."""
    return math.ceil((clock - ROUNDING) / size)


_NUMBERS = ("round", "clock", "cpu_seconds", "bytes", "samples", "stopped")
