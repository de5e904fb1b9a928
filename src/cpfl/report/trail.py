"""What a cohort's records come to, taken one by one and not kept: sums, and a curve thin enough to draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cpfl.errors import DamagedError

LONGEST = 2048  # points of a curve: more than a screen is wide
Point = tuple[float, float]  # virtual hours, loss


class Trail:
    """One cohort so far; whoever follows a run adds its new records to it."""

    def __init__(self) -> None:
        self.rounds = self.samples = self.bytes = 0
        self.last_samples = 0  # of the last round
        self.best_round = 0
        self.clock = self.cpu_seconds = 0.0
        self.busy = 0.0  # seconds that an average participant worked
        self.slowest: Counter[int] = Counter()  # seconds of the rounds in which everybody waited for this client
        self.stop = ""  # why it ended; empty: it has not
        self._points: list[Point] = []
        self._last: Point | None = None
        self._seen, self._stride = 0, 1

    def add(self, line: Mapping[str, Any]) -> None:
        """One more round."""
        try:
            self._add(line)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:  # valid JSON of a foreign shape
            raise DamagedError(f"a record is not that of a round: {type(error).__name__} {error}") from None

    def extend(self, lines: Iterable[Mapping[str, Any]]) -> Trail:
        """Many rounds."""
        for line in lines:
            self.add(line)
        return self

    @property
    def curve(self) -> list[Point]:
        """The judged validation loss over time: evenly thinned, with its first and its last point."""
        rest = [] if self._last is None or self._points[-1] == self._last else [self._last]
        return self._points + rest

    def _add(self, line: Mapping[str, Any]) -> None:
        self.rounds, self.clock, self.stop = int(line["round"]), float(line["clock"]), str(line["stop"])
        self.last_samples = int(line["samples"])
        self.samples += self.last_samples
        self.bytes += int(line["bytes"])
        self.cpu_seconds += float(line["cpu_seconds"])
        useful = float(line["cpu_seconds"]) - float(line.get("wasted_cpu_seconds", 0.0))
        self.busy += useful / len(line["participants"])
        self.slowest[int(line["slowest"])] += line["seconds"]
        if line["best"]:
            self.best_round = self.rounds
        loss = line["validation"] if line["average"] is None else line["average"]
        if loss is not None and math.isfinite(loss):
            self._mark((self.clock / 3600, float(loss)))

    def _mark(self, point: Point) -> None:
        self._last = point
        if self._seen % self._stride == 0:
            self._points.append(point)
        self._seen += 1
        if len(self._points) > LONGEST:  # every second one goes; the first stays
            self._points = self._points[::2]
            self._stride *= 2
