"""Read run folders for a report: settings, outcome, cohorts, later distillations; round records only when needed."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cpfl.errors import CpflError, DamagedError, one_sentence
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.runs.outcome import LARGEST, read_summary
from cpfl.settings import Experiment
from cpfl.settings.types import hours

EVALUATED = ("round", "cpu_hours", "accuracy")  # numbers of every line of evaluations.jsonl
SHARED = ("cohorts", "cpu_budgets")  # lists of such a line: which cohorts may spend how much
LONGEST = 2048  # points of a curve: more than a screen is wide
# What reading a damaged folder may raise; all but the first two come from valid JSON of another shape.
READ_ERRORS = (CpflError, OSError, KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)
Point = tuple[float, float]  # virtual hours, loss

COUNTED = ("round", "samples", "bytes", "slowest")  # numbers of every record, not negative
MEASURED = ("clock", "cpu_seconds", "seconds")


class Cohort(NamedTuple):
    """How long one cohort trained, and why it stopped."""

    samples: int | None
    rounds: int
    hours: float
    stop: str  # empty: it still trains


class Student(NamedTuple):
    """A student distilled when all cohorts had stopped, or earlier."""

    accuracy: float
    hours: float
    at: float | None  # virtual hours of the snapshots; None: not limited
    quorum: float
    cpu_hours: float
    gb: float
    ensemble: float
    validation: float | None = None  # its accuracy on the samples that clients keep back
    global_gb: float | None = None  # of the traffic, that between servers


class CohortHistory:
    """One cohort's records reduced to sums and a thinned loss curve; new records are added as they are written."""

    def __init__(self) -> None:
        self.rounds = self.samples = self.bytes = 0
        self.last_samples = 0  # of the last round
        self.best_round = 0
        self.clock = self.cpu_seconds = 0.0
        self.busy = 0.0  # seconds that an average participant worked
        self.slowest: Counter[int] = Counter()  # by client: seconds of the rounds in which it was the slowest
        self.stop = ""  # why it stopped; empty: it still trains
        self._points: list[Point] = []
        self._last: Point | None = None
        self._seen, self._stride = 0, 1

    def extend(self, lines: Iterable[Mapping[str, Any]], path: Path | str = "a cohort's file") -> "CohortHistory":
        """Add the records of more rounds, from this file."""
        try:
            for line in lines:
                self._add(line)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # valid JSON of another shape
            reason = f"a record is not that of a round: {type(error).__name__} {error}"
            raise DamagedError(f"{path} is damaged: {reason}") from None
        return self

    @property
    def curve(self) -> list[Point]:
        """The smoothed validation loss over time: evenly thinned, with its first and its last point."""
        rest = [] if self._last is None or self._points[-1] == self._last else [self._last]
        return self._points + rest

    def _add(self, line: Mapping[str, Any]) -> None:
        for key in (*COUNTED, *MEASURED):
            if not (_number(line[key]) and 0 <= line[key] <= LARGEST):
                raise ValueError(f"{key} is {line[key]!r}")
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
        loss = line["validation"] if line["moving_average"] is None else line["moving_average"]
        if loss is None or not math.isfinite(loss):
            return
        if not _number(loss) or abs(loss) > LARGEST:
            raise ValueError(f"a loss is {loss!r}")
        self._last = (self.clock / 3600, float(loss))
        if self._seen % self._stride == 0:
            self._points.append(self._last)
        self._seen += 1
        if len(self._points) > LONGEST:  # drop every second point; the first stays
            self._points = self._points[::2]
            self._stride *= 2


@dataclass(frozen=True)
class RunFacts:
    """One readable run."""

    folder: RunFolder
    experiment: Experiment
    about: dict[str, Any]
    summary: dict[str, Any] | None  # None: unfinished
    followed: list[CohortHistory] | None = None  # its cohorts so far, where the dashboard follows the run
    evaluated: list[dict[str, Any]] | None = None  # and its evaluations so far

    @property
    def name(self) -> str:
        """The path as text that can be written anywhere."""
        return shown(self.folder.path)

    @property
    def metric(self) -> str:
        """The name of the metric of its scores."""
        return str(self.about.get("metric", "accuracy"))

    @property
    def n(self) -> int:
        """The number of cohorts."""
        return self.experiment.cohorts

    @cached_property
    def cohorts(self) -> list[Cohort]:
        """Every cohort that has trained: from the summary of a finished run, else from the records."""
        counts = self.about["label_counts"] or [None] * len(self.about["cohorts"])
        each = self.about.get("labels_of_a_sample", 1)
        samples = [None if row is None else sum(row) // each for row in counts]
        if self.summary:
            by_cohort = self.summary["by_cohort"]
            return [Cohort(samples[c["cohort"]], c["rounds"], c["hours"], c["stop"]) for c in by_cohort]
        trained = [(i, history) for i, history in enumerate(self.histories) if history.rounds]
        return [Cohort(samples[i], history.rounds, history.clock / 3600, history.stop) for i, history in trained]

    @cached_property
    def histories(self) -> list[CohortHistory]:
        """Every cohort's records, reduced; reading them is the only slow step here."""
        if self.followed is not None:
            return self.followed
        found = []
        for cohort in range(len(self.about["cohorts"])):
            path, teacher = self.folder.rounds(cohort), self.folder.teacher(cohort)
            if self.summary and teacher.is_file():  # models may have been deleted to save disk
                facts = self.folder.numbers(teacher)
                records.check(self.folder.path, path, facts, whole=True)
                records.check_shared(self.folder.path, self.folder.shared, facts)
            found.append(CohortHistory().extend(records.read(path), path))
        return found

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Under the stopping rule joint: every evaluation of the ensemble of all cohort models."""
        if self.evaluated is not None:
            return self.evaluated
        path = self.folder.evaluations()
        lines = records.read_sealed(path, self.folder.identity)
        sound = all(_finite(line.get(key)) for line in lines for key in EVALUATED)
        if not (sound and all(isinstance(line.get(key, []), list) for line in lines for key in SHARED)):
            raise DamagedError(f"{path} is damaged: a line lacks {', '.join(EVALUATED)}, or is not that of evaluations")
        return lines

    @cached_property
    def meetings(self) -> list[float]:
        """The virtual hours at which the cohorts of a finished run met."""
        path = self.folder.meetings()
        lines = records.read_sealed(path, self.folder.identity) if self.summary else []
        if not all(_finite(line.get("clock")) for line in lines):
            raise DamagedError(f"{path} is damaged: a line is not that of a meeting")
        return [line["clock"] / 3600 for line in lines]

    @cached_property
    def students(self) -> list[Student]:
        """The run's own student, then later ones that differ only in when they were distilled."""
        if self.summary is None:
            return []
        own = self.experiment.distillation.model_dump()
        found = [(self.summary, own, self.folder.path)]
        for path in sorted((self.folder.path / "distillations").glob("*/summary.json")):
            summary = read_summary(path, self.folder.identity)
            settings = summary.get("distillation")
            if settings and own | {key: settings[key] for key in ("at", "quorum")} == settings:
                found.append((summary, settings, path.parent))
        return [
            Student(
                s["student_accuracy"],
                s["hours"],
                hours(d["at"]) if d["at"] else None,
                d["quorum"],
                s["cpu_hours"],
                s["comm_gb"],
                s["ensemble_accuracy"],
                validation_accuracy(results),
                s.get("global_gb"),
            )
            for s, d, results in found
        ]

    @property
    def state(self) -> str:
        """Finished, or how far it has come."""
        if self.summary:
            return "finished"
        return f"{sum(bool(history.stop) for history in self.histories)} of {len(self.histories)} cohorts stopped"


def validation_accuracy(results: Path) -> float | None:
    """A global model's accuracy on the samples that clients keep for validation, every sample with the same weight.

    None where it is not known: a deployed run's server does not see these samples.
    """
    path = results / "clients.json"
    if not path.is_file():
        return None
    clients = json.loads(path.read_bytes())["clients"]
    pairs = [(one.get("accuracy_held_back"), one.get("held_back")) for one in clients]
    known = [(score, count) for score, count in pairs if score is not None and count]
    if not all(_finite(score) and _finite(count) and count > 0 for score, count in known):
        raise DamagedError(f"{path} is damaged: accuracy_held_back and held_back are no numbers")
    total = sum(count for _, count in known)
    return float(sum(score * count for score, count in known) / total) if total else None


def read(path: Path) -> RunFacts:
    """One run folder."""
    os.stat(path / "run.json")  # which says why it cannot be read
    folder = RunFolder.open(path)
    if not (path / "experiment.toml").is_file():
        raise DamagedError(f"{path / 'experiment.toml'} is missing")
    folder.verify()
    run = RunFacts(folder, folder.experiment(), folder.about(), folder.summary())
    _check_published(path / "run.json", run.about.get("published"))
    return run


def read_all(paths: Iterable[Path]) -> tuple[list[RunFacts], list[tuple[str, str]]]:
    """All runs that can be read; for each of the others its path and what is wrong with it."""
    good, damaged = [], []
    for path in paths:
        try:
            run = read(path)
            _ = run.cohorts, run.students
            good.append(run)
        except READ_ERRORS as error:
            damaged.append((shown(path), damage(error)))
    return good, damaged


def damage(error: Exception) -> str:
    """What is wrong with a folder, for a page."""
    if isinstance(error, OSError):
        return shown(f"cannot read {error.filename}: {error.strerror}")
    known = isinstance(error, CpflError)
    return shown(one_sentence(error if known else f"a file in it is damaged: {type(error).__name__} {error}"))


def shown(path: Path | str) -> str:
    """Text for a page: file names may hold bytes that are no text."""
    return os.fsencode(path).decode(errors="replace")


def _check_published(path: Path, carried: Any) -> None:
    """Published figures may have been written by hand."""
    if carried is None:
        return
    lists = [carried.get(key) for key in ("by_n", "at")] if isinstance(carried, dict) else [None]
    rows = [row for rows in lists for row in (rows if isinstance(rows, list) else [None])]
    if not all(isinstance(row, dict) and "n" in row and all(map(_finite, row.values())) for row in rows):
        raise DamagedError(f"{path} is damaged: published is not of the form by_n = [{{n, …}}], at = [{{n, …}}]")


def _number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _finite(value: Any) -> bool:
    return _number(value) and abs(value) <= LARGEST
