"""What closing a round yields: its record, and the snapshots that fell due."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cpfl.federation.round_plan import Waste
from cpfl.federation.stopping import ROUNDING
from cpfl.models import State
from cpfl.setting_types import interval


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
    repeats: int = 0  # attempts before it that brought too few results; all they cost is in this line
    stale: int = 0  # participants that had begun in an earlier round
    wasted_cpu_seconds: float = 0.0  # of cpu_seconds, what came to nothing
    wasted_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)

    def with_waste(self, lost: Waste) -> RoundRecord:
        """With what else was spent to no avail."""
        return replace(
            self,
            cpu_seconds=self.cpu_seconds + lost.cpu_seconds,
            bytes=self.bytes + lost.bytes,
            wasted_cpu_seconds=self.wasted_cpu_seconds + lost.cpu_seconds,
            wasted_bytes=self.wasted_bytes + lost.bytes,
        )


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


def due(every: str, before: Snapshot, after: Snapshot, last: bool) -> list[Snapshot]:
    """Every so many rounds, or the model that was current when a multiple of so many hours passed; and the last."""
    if not every:
        return []
    kind, size = interval(every)
    found = []
    passed = kind == "seconds" and _passed(after.clock, size) > _passed(before.clock, size)
    if passed and before.round:  # the common start is kept anyway
        found.append(before)
    if last or (kind == "rounds" and after.round % size == 0):
        found.append(after)
    return found


def _passed(clock: float, size: float) -> int:
    """Multiples of an interval that lie before the clock; one that is reached exactly is not passed yet."""
    return math.ceil((clock - ROUNDING) / size)
