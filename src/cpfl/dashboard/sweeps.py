"""Follow a sweep: which runs it is made of, when it started, and which of its runs failed and why."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpfl.dashboard.follow import Stamp, Tail, stamp
from cpfl.reports.reading import READ_ERRORS, damage
from cpfl.sweeps.grid import FILE, SweepGrid
from cpfl.sweeps.log import FILE as LOG

LOG_BYTES = 1 << 20  # that are read at a time


class FollowedSweep:
    """The folder of a sweep and how far its log has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""  # what is wrong with it; empty: nothing
        self.runs: Mapping[str, Mapping[str, Any]] = {}  # the settings of each, by name
        self.failures: dict[str, str] = {}  # reasons, by name
        self.began = 0.0  # when the command that makes the runs started; 0: not known
        self.ended = 0.0  # when it ended or was interrupted; 0: it has not, or was killed
        self._fresh = False  # that command is the first one
        self._base: tuple[float, float] | None = None  # a moment, and the work that was done then
        self._grid: Stamp = None
        self._tail = Tail(path / LOG)

    def update(self) -> bool:
        """Read what is new; whether there was anything."""
        found = stamp(self.path / FILE)
        changed = found != self._grid
        try:
            if changed:
                self._grid, self.damage = found, ""
                grid = SweepGrid.read(self.path)
                self.runs = grid.runs if grid else {}
            lines, begins = self._tail.new_lines(LOG_BYTES)
            if begins:
                self.failures, self.began, self.ended, self._base = {}, 0.0, 0.0, None
            for line in lines:
                self._add(line)
        except READ_ERRORS as error:
            changed |= not self.damage
            self.damage = damage(error)
            return changed
        return changed or bool(lines)

    def _add(self, line: Mapping[str, Any]) -> None:
        event, when = line["event"], float(line["time"])
        if event == "started":
            self._fresh, self._base = not self.began and not line["finished"], None
            self.began, self.ended = when, 0.0
        elif event in ("ended", "interrupted"):
            self.ended = when
        elif event == "begun":
            self.failures.pop(str(line["run"]), None)
        elif event == "failed":
            self.failures[str(line["run"])] = str(line["reason"])

    def rate(self, done: float, now: float) -> float:
        """Work per second of real time since the command started, all its pauses included; 0: not known yet.

        Of a sweep that was resumed, the time counts from which the dashboard looks at it.
        """
        if self._base is None and self.began:
            self._base = (self.began, 0.0) if self._fresh else (now, done)
        then, before = self._base or (now, done)
        return (done - before) / (now - then) if now > then and done > before else 0.0
