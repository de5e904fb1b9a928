"""The record of a closed round, and the snapshots of models that are due with it."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cpfl.federation.accounting import Waste
from cpfl.federation.stopping.rules import ROUNDING
from cpfl.models import State
from cpfl.settings.types import interval


@dataclass(frozen=True)
class RoundRecord:
    """One line of a cohort's records."""

    cohort: int
    round: int
    participants: list[int]
    loss: float  # plain mean over participants
    validation: float | None  # plain mean over reporting participants
    reporting: int
    moving_average: float | None  # moving average of `validation`
    best: bool  # its model is the best so far
    seconds: float  # virtual length of the round
    clock: float  # the cohort's virtual seconds after it
    slowest: int  # the client that all others waited for
    cpu_seconds: float
    bytes: int
    samples: int
    stop: str  # why the cohort stopped with this round; empty: it did not
    excluded: dict[int, str] = field(default_factory=dict)  # participants whose work is not in the model, and why
    repeats: int = 0  # earlier attempts that returned too few results; their cost is in this record
    stale: int = 0  # participants that had begun in an earlier round
    wasted_cpu_seconds: float = 0.0  # of cpu_seconds, for work that was discarded
    wasted_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)

    def with_waste(self, waste: Waste) -> "RoundRecord":
        """A copy with more waste."""
        return replace(
            self,
            cpu_seconds=self.cpu_seconds + waste.cpu_seconds,
            bytes=self.bytes + waste.bytes,
            wasted_cpu_seconds=self.wasted_cpu_seconds + waste.cpu_seconds,
            wasted_bytes=self.wasted_bytes + waste.bytes,
        )


@dataclass(frozen=True)
class Snapshot:
    """A cohort's model as it was after `round`, at `clock` virtual seconds."""

    cohort: int
    round: int
    clock: float
    model: State


@dataclass(frozen=True)
class ClosedRound:
    """What closing a round yields."""

    record: RoundRecord
    snapshots: list[Snapshot]


def due(every: str, before: Snapshot, after: Snapshot, last: bool) -> list[Snapshot]:
    """The snapshots between two moments: every so many rounds or hours, and the last model."""
    if not every:
        return []
    kind, size = interval(every)
    found = []
    passed = kind == "seconds" and _passed(after.clock, size) > _passed(before.clock, size)
    if passed and before.round:  # the common initial model is kept anyway
        found.append(before)
    if last or (kind == "rounds" and after.round % size == 0):
        found.append(after)
    return found


def _passed(clock: float, size: float) -> int:
    """Multiples of an interval that lie before the clock; one that is reached exactly is not passed yet."""
    return math.ceil((clock - ROUNDING) / size)
