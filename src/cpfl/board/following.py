"""One run, followed while another process writes it: what is new is read, what was read is kept as sums and curves."""

from __future__ import annotations

import calendar
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cpfl.board.pace import Pace
from cpfl.board.tail import Tail
from cpfl.errors import DamagedError
from cpfl.report.reading import TROUBLE, RunFacts, read, trouble
from cpfl.report.trail import Trail
from cpfl.runs import records

STARTS = ("started", "resumed")  # of what a run's log tells


class Followed:
    """A run folder and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = ""  # what is wrong with it; empty: nothing
        self.epoch = 0  # of the distillation
        self.caught_up = False  # all records that there were have been read
        self.began = self.ended = 0.0  # when run.json and summary.json were written; 0: they are not
        self._facts: RunFacts | None = None
        self._files: list[_Stamp | None] = []
        self._begin()

    @property
    def facts(self) -> RunFacts | None:
        """The run as far as it has been read; None: it cannot be."""
        return None if self._facts is None or self.damage else replace(self._facts, followed=self.trails)

    @property
    def finished(self) -> bool:
        """Whether its outcome is there."""
        return self._facts is not None and self._facts.summary is not None

    @property
    def left(self) -> int:
        """Bytes of records that are not read yet."""
        return sum(tail.left for tail in self.tails)

    @property
    def heard(self) -> float:
        """When it last wrote a record, or began."""
        return max(self.began, self._epochs.heard, *(tail.heard for tail in self.tails))

    def look(self) -> bool:
        """Read what is short, if it has changed: settings, cohorts, outcome, later distillations."""
        found = _stamps(self.path)
        if found == self._files:
            return False
        if found[:1] != self._files[:1]:  # another run under the same name
            self._begin()
        self._files, self.damage, self.caught_up = found, "", False
        self.began, self.ended = (stamp.seconds if stamp else 0.0 for stamp in (found[0], found[2]))
        try:
            self._facts = read(self.path)
            if not self.tails:
                for cohort in range(len(self._facts.about["plan"])):
                    self.tails.append(Tail(self._facts.folder.rounds(cohort)))
                    self.trails.append(Trail())
            _ = replace(self._facts, followed=self.trails).cohorts
        except TROUBLE as error:
            self.damage = trouble(error)
        return True

    def read(self, most: int) -> int:
        """Read new records, about so many bytes; how many it were."""
        before = most
        if self._facts is None or self.damage:
            return 0
        try:
            for cohort in range(len(self.tails)):
                most -= self._read(cohort, most)
            self._read_epochs()
        except TROUBLE as error:
            self.damage = trouble(error)
        self.caught_up = not self.left
        if self.caught_up and not self.finished:
            self.pace.tick(self.heard, sum(trail.samples for trail in self.trails), self.epoch)
        return before - most

    def _begin(self) -> None:
        self.tails: list[Tail] = []
        self.trails: list[Trail] = []
        self._epochs = Tail(self.path / "epochs.jsonl")
        self.epoch = 0
        self.pace = Pace(_began(self.path))

    def _read(self, cohort: int, most: int) -> int:
        tail, trail = self.tails[cohort], self.trails[cohort]
        before = tail.read
        try:
            lines, begins = tail.news(most)
            if not begins and lines and lines[0]["round"] != trail.rounds + 1:
                raise DamagedError(f"{tail.path} is damaged: rounds are missing")
        except DamagedError:
            if not trail.rounds:
                raise
            # A resumed run cuts its records back and writes on: what was read before may not be there any more.
            tail.rewind()
            self.trails[cohort] = Trail()
            return 0
        if begins:
            before, trail = 0, Trail()
            self.trails[cohort] = trail
        trail.extend(lines)
        return tail.read - before

    def _read_epochs(self) -> None:
        lines, begins = self._epochs.news(1 << 20)
        if begins:
            self.epoch = 0
        for line in lines:
            self.epoch = int(line["epoch"])


class _Stamp(NamedTuple):
    """Tells whether a file has changed."""

    path: Path
    inode: int
    seconds: float
    size: int


def _stamps(path: Path) -> list[_Stamp | None]:
    """Of the short files: run.json, settings, outcome, later distillations."""
    names = [path / name for name in ("run.json", "experiment.toml", "summary.json")]
    later = path / "distillations"
    names += sorted(folder / "summary.json" for folder in later.iterdir()) if later.is_dir() else []
    return [_stamp(name) for name in names]


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _Stamp(path, found.st_ino, found.st_mtime, found.st_size)


def _began(path: Path) -> float | None:
    """When training began; None for a run that was resumed, of which the first part is not known."""
    try:
        starts = [line["time"] for line in records.read(path / "log.jsonl") if line["event"] in STARTS]
        return calendar.timegm(time.strptime(starts[0], "%Y-%m-%dT%H:%M:%SZ")) if len(starts) == 1 else None
    except (*TROUBLE, ValueError, OSError):  # it is only an estimate's beginning
        return None
