"""When every client is there: FedScale's trace of real phones, a synthetic week, or always.

A client's week is a list of spells in which it is there, [begin, end) in seconds, and begins anew after its period.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError
from cpfl.experiment import Devices
from cpfl.randomness import stream

WEEK = 7 * 24 * 3600.0
SHORTEST = 1.0  # seconds: a shorter spell is none


@dataclass(frozen=True)
class Week:
    """Spells of one client, in order and apart from each other."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    period: float

    def until(self, time: float) -> float:
        """When the client leaves, if it is there at this time; the time itself: it is not there."""
        now = time % self.period
        at = bisect_right(self.begins, now) - 1
        if at < 0 or self.ends[at] <= now:
            return time
        left = self.ends[at] - now
        if self.ends[at] == self.period and self.begins[0] == 0:  # it stays over the end of its week
            left = math.inf if at == 0 else left + self.ends[0]
        return time + left

    def back(self, time: float) -> float:
        """When the client is there next; the time itself: it is there."""
        if self.until(time) > time:
            return time
        now = time % self.period
        at = bisect_right(self.begins, now)
        wait = self.begins[at] - now if at < len(self.begins) else self.period - now + self.begins[0]
        later = time + wait
        return later if self.until(later) > later else math.nextafter(later, math.inf)  # what rounding took away

    def share(self, begin: float, end: float) -> float:
        """Which part of an interval the client is there."""
        there, time = 0.0, begin
        while time < end:
            leaves = min(self.until(time), end)
            there += leaves - time
            time = leaves if leaves > time else self.back(time)
        return there / (end - begin)


class Availability(Protocol):
    """The week of every client."""

    @property
    def known(self) -> str:
        """What a resumed run must find again."""

    def week(self, client: int) -> Week:
        """When a client is there."""


@dataclass(frozen=True)
class Synthetic:
    """Weeks that are drawn when they are first asked for; where it travels to, they are drawn again."""

    on: float  # mean seconds of a spell
    off: float  # and between two
    seed: int
    _drawn: dict[int, Week] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def known(self) -> str:
        """The seed is the experiment's."""
        return f"synthetic {self.on} {self.off}"

    def week(self, client: int) -> Week:
        """One client's."""
        if client not in self._drawn:
            self._drawn[client] = synthetic(self.on, self.off, self.seed, client)
        return self._drawn[client]

    def __reduce__(self) -> tuple[Any, ...]:
        return Synthetic, (self.on, self.off, self.seed)


@dataclass(frozen=True)
class Trace:
    """Weeks of recorded users in columns, so that millions of clients are one array more."""

    known: str  # sha256 of the columns
    rows: NDArray[np.int64] = field(repr=False, compare=False)  # the user that each client is
    spells: NDArray[np.float64] = field(repr=False, compare=False)  # begin and end, user after user
    first: NDArray[np.int64] = field(repr=False, compare=False)  # where a user's spells begin, and where the last end
    periods: NDArray[np.float64] = field(repr=False, compare=False)
    _weeks: dict[int, Week] = field(default_factory=dict, init=False, repr=False, compare=False)  # by user

    @classmethod
    def of(cls, weeks: Sequence[Week], rows: Sequence[int] | NDArray[np.int64]) -> Trace:
        """Users' weeks, and which of them each client has."""
        spells = np.array([spell for week in weeks for spell in zip(week.begins, week.ends, strict=True)], np.float64)
        first = np.cumsum([0, *(len(week.begins) for week in weeks)], dtype=np.int64)
        columns = (np.asarray(rows, np.int64), spells, first, np.array([week.period for week in weeks], np.float64))
        digest = hashlib.sha256()
        for column in columns:
            digest.update(np.ascontiguousarray(column).data)
        return cls(digest.hexdigest(), *columns)

    def week(self, client: int) -> Week:
        """That of the client's user."""
        user = int(self.rows[client])
        if user not in self._weeks:
            begins, ends = self.spells[self.first[user] : self.first[user + 1]].T.tolist()
            self._weeks[user] = Week(tuple(begins), tuple(ends), float(self.periods[user]))
        return self._weeks[user]

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, (self.known, self.rows, self.spells, self.first, self.periods)


def availability(devices: Devices, clients: int, seed: int, roots: Sequence[Path]) -> Availability | None:
    """When the experiment's clients are there, drawn with the run's seed; None: always."""
    if devices.availability == "always":
        return None
    if devices.availability == "synthetic":
        return Synthetic(devices.online_hours * 3600, devices.offline_hours * 3600, seed)
    weeks = read(_find(devices.availability, roots))
    return Trace.of(weeks, stream(seed, "availability").choice(len(weeks), clients, replace=clients > len(weeks)))


def synthetic(on: float, off: float, seed: int, client: int) -> Week:
    """Spells of exponential length, there and away in turn, for a week."""
    rng = stream(seed, "availability", client)
    there, time = bool(rng.random() < on / (on + off)), 0.0
    spells: list[tuple[float, float]] = []
    while time < WEEK:
        end = min(WEEK, time + max(SHORTEST, float(rng.exponential(on if there else off))))
        if there:
            spells.append((time, end))
        there, time = not there, end
    if not spells:  # away all week: there for one spell at its end, or it could never take part
        spells = [(WEEK - min(on, WEEK), WEEK)]
    begins, ends = zip(*spells, strict=True)
    return Week(begins, ends, WEEK)


def read(path: Path) -> list[Week]:
    """Every user of a file in FedScale's form: {user: {"active": […], "inactive": […], "finish_time": …}}."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        weeks = [_week(user, row, path) for user, row in tree.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the availability trace {path} is not FedScale's json of active, inactive and finish_time: {error}"
        ) from None
    if not weeks:
        raise DataError(f"the availability trace {path} has no users")
    return weeks


def _week(user: str, row: dict[str, Any], path: Path) -> Week:
    begins, ends = [[float(value) for value in row[key]] for key in ("active", "inactive")]
    period = float(row["finish_time"])
    moments = [moment for pair in zip(begins, ends, strict=True) for moment in pair]
    if not begins or sorted(moments) != moments or begins[0] < 0 or not ends[-1] <= period < math.inf:
        raise DataError(
            f"user {user} of the availability trace {path} has spells that do not follow each other from 0 to "
            f"finish_time = {period:g}"
        )
    spells: list[list[float]] = []
    for begin, end in zip(begins, ends, strict=True):
        if spells and begin == spells[-1][1]:  # they touch: one spell
            spells[-1][1] = end
        elif end - begin >= SHORTEST:
            spells.append([begin, end])
    if not spells:
        raise DataError(f"user {user} of the availability trace {path} is never there")
    return Week(tuple(begin for begin, _ in spells), tuple(end for _, end in spells), period)


def _find(name: str, roots: Sequence[Path]) -> Path:
    if name != "fedscale":
        path = Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"devices.availability = {name!r} is no file; give a json file, fedscale, synthetic or always"
            )
        return path
    for root in roots:
        found = sorted((root / "fedscale").glob("client_behave_trace*.json"))
        if found:
            return found[0]
    looked = ", ".join(str(root / "fedscale") for root in roots)
    raise DataError(
        f"devices.availability = 'fedscale' was not found in {looked}: put FedScale's client_behave_trace (.json) "
        "there, or set devices.availability=synthetic"
    )
