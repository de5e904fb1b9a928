"""When every client is available: FedScale's trace of real phones, synthetic schedules, or always.

A schedule is a list of intervals in which a client is available, [begin, end) in seconds. It repeats after its period.
"""

import hashlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError, first_line, quoted
from cpfl.randomness import stream
from cpfl.settings import Devices
from cpfl.user_files import check_readable, expanded

WEEK = 7 * 24 * 3600.0
MIN_SECONDS = 1.0  # a shorter interval does not count


@dataclass(frozen=True)
class AvailabilitySchedule:
    """Intervals of one client, in order and disjoint."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    period: float

    def available_until(self, time: float) -> float:
        """When the client leaves, if it is available at this time; the time itself: it is not."""
        now = time % self.period
        k = bisect_right(self.begins, now) - 1
        if k < 0 or self.ends[k] <= now:
            return time
        left = self.ends[k] - now
        if self.ends[k] == self.period and self.begins[0] == 0:  # the interval continues in the next period
            left = math.inf if k == 0 else left + self.ends[0]
        return time + left

    def next_available(self, time: float) -> float:
        """When the client is available next; the time itself: it is available."""
        if self.available_until(time) > time:
            return time
        now = time % self.period
        k = bisect_right(self.begins, now)
        wait = self.begins[k] - now if k < len(self.begins) else self.period - now + self.begins[0]
        later = time + wait
        return later if self.available_until(later) > later else math.nextafter(later, math.inf)  # a rounding error

    def share(self, begin: float, end: float) -> float:
        """The share of an interval in which the client is available."""
        available, time = 0.0, begin
        while time < end:
            leaves = min(self.available_until(time), end)
            available += leaves - time
            time = leaves if leaves > time else self.next_available(time)
        return available / (end - begin)


class Availability:
    """The schedule of every client. Schedules are built at their first use, and are not pickled."""

    fingerprint: str  # what a resumed run must find again

    def schedule(self, client: int) -> AvailabilitySchedule:
        """When a client is available."""
        if client not in self._schedules:
            self._schedules[client] = self._build(client)
        return self._schedules[client]

    @cached_property
    def _schedules(self) -> dict[int, AvailabilitySchedule]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_schedules"}

    def _build(self, number: int) -> AvailabilitySchedule:
        raise NotImplementedError


@dataclass(frozen=True)
class Synthetic(Availability):
    """Schedules that are drawn for each client."""

    online: float  # mean seconds of an interval
    offline: float  # mean seconds between two
    seed: int

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The seed is the experiment's."""
        return f"synthetic {self.online} {self.offline}"

    def _build(self, number: int) -> AvailabilitySchedule:
        """Intervals of exponential length, alternately available and not, for a week."""
        rng, online, offline = stream(self.seed, "availability", number), self.online, self.offline
        available, time = bool(rng.random() < online / (online + offline)), 0.0
        intervals: list[tuple[float, float]] = []
        while time < WEEK:
            end = min(WEEK, time + max(MIN_SECONDS, float(rng.exponential(online if available else offline))))
            if available:
                intervals.append((time, end))
            available, time = not available, end
        if not intervals:  # never available: one interval at the end of the week, or the client could never take part
            intervals = [(WEEK - min(online, WEEK), WEEK)]
        begins, ends = zip(*intervals, strict=True)
        return AvailabilitySchedule(begins, ends, WEEK)


@dataclass(frozen=True)
class Trace(Availability):
    """Schedules of recorded users in columns, so that millions of clients are one more array."""

    fingerprint: str  # sha256 of the columns
    users: NDArray[np.int64] = field(repr=False, compare=False)  # the user that each client is
    intervals: NDArray[np.float64] = field(repr=False, compare=False)  # begin and end, user after user
    starts: NDArray[np.int64] = field(repr=False, compare=False)  # of each user's intervals; then the end of the last's
    periods: NDArray[np.float64] = field(repr=False, compare=False)

    @classmethod
    def from_schedules(
        cls, schedules: Sequence[AvailabilitySchedule], users: Sequence[int] | NDArray[np.int64]
    ) -> "Trace":
        """Users' schedules, and which of them each client has."""
        intervals = np.array([pair for one in schedules for pair in zip(one.begins, one.ends, strict=True)], np.float64)
        starts = np.cumsum([0, *(len(one.begins) for one in schedules)], dtype=np.int64)
        periods = np.array([one.period for one in schedules], np.float64)
        columns = (np.asarray(users, np.int64), intervals, starts, periods)
        digest = hashlib.sha256()
        for column in columns:
            digest.update(np.ascontiguousarray(column).data)
        return cls(digest.hexdigest(), *columns)

    def schedule(self, client: int) -> AvailabilitySchedule:
        """That of the client's user, built once for all clients that have it."""
        return super().schedule(int(self.users[client]))

    def _build(self, number: int) -> AvailabilitySchedule:
        begins, ends = self.intervals[self.starts[number] : self.starts[number + 1]].T.tolist()
        return AvailabilitySchedule(tuple(begins), tuple(ends), float(self.periods[number]))


def availability(devices: Devices, clients: int, seed: int, roots: Sequence[Path]) -> Availability | None:
    """When the experiment's clients are available, drawn with the run's seed; None: always."""
    if devices.availability == "always":
        return None
    if devices.availability == "synthetic":
        return Synthetic(devices.online_hours * 3600, devices.offline_hours * 3600, seed)
    allowed = "a json file, fedscale, synthetic or always"
    path = find_trace("devices.availability", devices.availability, roots, ["client_behave_trace*.json"], allowed)
    schedules = read(path)
    count = len(schedules)
    return Trace.from_schedules(schedules, stream(seed, "availability").choice(count, clients, replace=clients > count))


def read(path: Path) -> list[AvailabilitySchedule]:
    """Every user of a file in FedScale's format: {user: {"active": […], "inactive": […], "finish_time": …}}."""
    try:
        check_readable(path)
        tree = json.loads(path.read_text(encoding="utf-8"))
        schedules = [_schedule(row, f"user {user} of the availability trace {path}") for user, row in tree.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        what = "FedScale's json of active, inactive and finish_time"
        raise DataError(f"the availability trace {path} is not {what}: {first_line(error)}") from None
    if not schedules:
        raise DataError(f"the availability trace {path} has no users")
    return schedules


def _schedule(row: dict[str, Any], who: str) -> AvailabilitySchedule:
    active, inactive = [[float(value) for value in row[key]] for key in ("active", "inactive")]
    period = float(row["finish_time"])
    moments = [moment for pair in zip(active, inactive, strict=True) for moment in pair]
    if not moments or sorted(moments) != moments or moments[0] < 0 or not moments[-1] <= period < math.inf:
        raise DataError(f"{who} has intervals that do not follow each other from 0 to finish_time = {period:g}")
    intervals: list[tuple[float, float]] = []
    for begin, end in zip(active, inactive, strict=True):
        if intervals and begin == intervals[-1][1]:  # they touch: one interval
            intervals[-1] = intervals[-1][0], end
        elif end - begin >= MIN_SECONDS:
            intervals.append((begin, end))
    if not intervals:
        raise DataError(f"{who} is never available")
    begins, ends = zip(*intervals, strict=True)
    return AvailabilitySchedule(begins, ends, period)


def find_trace(key: str, name: str, roots: Sequence[Path], patterns: Sequence[str], allowed: str) -> Path:
    """The file of a trace that a setting names: a path, or "fedscale" for the first match in the data folders."""
    if name != "fedscale":
        path = expanded(Path(name), key)
        if not os.path.isfile(path):  # Path.is_file raises an error for a name that is too long
            raise DataError(f"{key} = {quoted(name)} is no file; give {allowed}")
        return path
    for root in roots:
        for pattern in patterns:
            if found := sorted((root / "fedscale").glob(pattern)):
                return found[0]
    searched = ", ".join(str(root / "fedscale") for root in roots)
    raise DataError(
        f"{key} = 'fedscale' was not found in {searched}: put FedScale's {' or '.join(patterns)} there, "
        f"or set {key}=synthetic"
    )
