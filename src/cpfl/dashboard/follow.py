"""Follow a run while another process writes it: new lines are read once and kept as sums and curves."""

import math
import os
import stat
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cpfl.errors import DamagedError
from cpfl.reports.reading import READ_ERRORS, CohortHistory, RunFacts, damage, read, shown
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.terminal.progress import Throughput

STARTS = ("started", "resumed")  # events in a run's log
SHORT = ("run.json", "experiment.toml", "summary.json", "evaluations.jsonl", "meetings.jsonl", "log.jsonl")
Stamp = tuple[int, float, int] | None
EPOCH_BYTES = 1 << 20  # of epochs.jsonl that are read at a time


class Tail:
    """A growing file of JSON lines: remembers how far it was read, and notices that it was replaced or truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified = 0.0  # when it was last written to
        self.read = self.unread = 0  # bytes
        self._inode = 0

    def new_lines(self, most: int) -> tuple[list[dict[str, Any]], bool]:
        """New complete lines of about `most` bytes; and whether they begin the file, as after a truncation."""
        try:
            found = os.stat(self.path)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedError(f"{self.path} is damaged: it is no plain file")
            if found.st_ino != self._inode or found.st_size < self.read:
                self.read = 0
            self._inode, self.modified, begins = found.st_ino, found.st_mtime, self.read == 0
            text = b""
            if found.st_size > self.read and most > 0:
                with self.path.open("rb") as file:
                    file.seek(self.read)
                    text = file.read(most)
                    text += b"" if text.endswith(b"\n") else file.readline()
        except FileNotFoundError:
            self.read = self._inode = self.unread = 0
            return [], True
        except OSError as error:
            raise DamagedError(f"cannot read {self.path}: {error.strerror}") from None
        self.unread = max(0, found.st_size - self.read - len(text))
        self.read += text.rfind(b"\n") + 1  # the last line may still be incomplete
        return records.parse(self.path, text), begins


class Followed:
    """A run folder and how far it has been read."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.name = shown(path.relative_to(root) if path != root else root.name)  # below the folder that is shown
        self.damage = ""  # what is wrong with it; empty: nothing
        self.caught_up = False  # all records were read
        self.began = self.ended = 0.0  # when run.json and summary.json were written; 0: not yet
        self.started = 0.0  # when the process that trains it started or resumed it
        self.meetings: list[float] = []  # their virtual seconds
        self._facts: RunFacts | None = None
        self._evaluations: list[dict[str, Any]] = []
        self._files: list[Stamp] = []

    @property
    def facts(self) -> RunFacts:
        """The run as far as it has been read, unless it is damaged."""
        assert self._facts is not None, "reload has read it, or has found damage"
        return replace(self._facts, followed=self.histories, evaluated=self._evaluations)

    @property
    def finished(self) -> bool:
        """Whether it has written its outcome."""
        return self._facts is not None and self._facts.summary is not None

    @property
    def unread(self) -> int:
        """Bytes of records that are not read yet."""
        return sum(tail.unread for tail in self.tails)

    @property
    def modified(self) -> float:
        """When it last wrote a record, or began."""
        return max(self.began, self._epochs.modified, *(tail.modified for tail in self.tails))

    def reload(self) -> bool:
        """Read the short files if one has changed: settings, cohorts, outcome, meetings, later distillations."""
        later = sorted(self.path.glob("distillations/*/summary.json"))
        found = [stamp(path) for path in (*(self.path / name for name in SHORT), *later)]
        if found == self._files:
            return False
        if found[:1] != self._files[:1]:  # a run that is new, or another one under the same name
            self.tails: list[Tail] = []
            self.histories: list[CohortHistory] = []
            self._epochs = Tail(self.path / "epochs.jsonl")
            self.epoch = 0  # of the distillation
            self.samples, self.epochs = Throughput(_began(self.path)), Throughput()
        self._files, self.damage, self.caught_up = found, "", False
        self.began, self.ended = (one[1] if one else 0.0 for one in (found[0], found[2]))
        try:
            self._facts = read(self.path)
            if not self.tails:
                cohorts = range(len(self._facts.about["cohorts"]))
                self.tails = [Tail(self._facts.folder.rounds(cohort)) for cohort in cohorts]
                self.histories = [CohortHistory() for _ in cohorts]
            self._evaluations = self._facts.evaluations
            self.meetings = _meetings(self._facts.folder)
            self.started = next(reversed(_starts(self.path)), self.began)
            facts = self.facts
            _ = facts.cohorts, facts.students
        except READ_ERRORS as error:
            self.damage = damage(error)
        return True

    def read(self, most: int) -> int:
        """Read new records of about so many bytes; the number of bytes read."""
        before = most
        if self.damage:
            return 0
        try:
            for cohort in range(len(self.tails)):
                most -= self._read_rounds(cohort, most)
            lines, begins = self._epochs.new_lines(EPOCH_BYTES)
            self.epoch = int(lines[-1]["epoch"]) if lines else 0 if begins else self.epoch
        except READ_ERRORS as error:
            self.damage = damage(error)
        self.caught_up = not self.unread
        if self.caught_up and not self.finished:
            self.samples.tick(self.modified, sum(history.samples for history in self.histories))
            self.epochs.tick(self.modified, self.epoch)
        return before - most

    def _read_rounds(self, cohort: int, most: int) -> int:
        tail, history = self.tails[cohort], self.histories[cohort]
        before = tail.read
        try:
            lines, begins = tail.new_lines(most)
            if not begins and lines and lines[0]["round"] != history.rounds + 1:
                raise DamagedError(f"{tail.path} is damaged: rounds are missing")
        except DamagedError:
            if not history.rounds:
                raise
            # A resumed run truncates its records and appends again: what was read before may be gone.
            tail.read = 0
            self.histories[cohort] = CohortHistory()
            return 0
        if begins:
            before = 0
            self.histories[cohort] = CohortHistory()
        self.histories[cohort].extend(lines, tail.path)
        return tail.read - before


def stamp(path: Path) -> Stamp:
    """Inode, time and size of a file, which tell whether it has changed; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime, found.st_size


def _began(path: Path) -> float | None:
    """When training began; None for a resumed run, whose earlier throughput is not known."""
    starts = _starts(path)
    return starts[0] if len(starts) == 1 else None


def _starts(path: Path) -> list[float]:
    """When the run was started and resumed; empty where its log does not say: only estimates depend on it."""
    try:
        lines = records.read(path / "log.jsonl")
        return [datetime.fromisoformat(line["time"]).timestamp() for line in lines if line["event"] in STARTS]
    except READ_ERRORS:
        return []


def _meetings(folder: RunFolder) -> list[float]:
    """The virtual seconds of all meetings."""
    path = folder.meetings()
    lines = records.read_sealed(path, folder.identity)
    try:
        clocks = [float(line["clock"]) for line in lines]
    except (KeyError, TypeError, ValueError):
        clocks = [math.nan]
    if not all(map(math.isfinite, clocks)):
        raise DamagedError(f"{path} is damaged: a line is not that of a meeting")
    return clocks
