"""What a report takes from one run folder: outcome, cohorts, later distillations; records only when asked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpfl.errors import CpflError, DamagedError
from cpfl.experiment import Experiment
from cpfl.report.tables import MEASURES
from cpfl.report.trail import Trail
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.setting_types import hours

NUMBERS = (*MEASURES, "cohorts", "seed", "cut_off")  # what every finished run must tell
JUDGED = ("round", "cpu_hours", "value")  # what every judgement must
# What reading a damaged folder may raise; the last four come from valid JSON of a foreign shape.
TROUBLE = (CpflError, KeyError, TypeError, IndexError, AttributeError)


@dataclass(frozen=True)
class Cohort:
    """How one cohort fared."""

    number: int
    samples: int | None
    rounds: int
    hours: float
    stop: str  # why it ended; empty: it has not


@dataclass(frozen=True)
class Student:
    """What the cohorts' models were worth together, distilled at some moment."""

    accuracy: float
    hours: float
    at: float | None  # the virtual hours that were asked for
    quorum: float


@dataclass(frozen=True)
class RunFacts:
    """One readable run."""

    folder: RunFolder
    experiment: Experiment
    about: dict[str, Any]
    summary: dict[str, Any] | None  # None: unfinished
    students: list[Student]  # the run's own first, then later ones by the same recipe
    followed: list[Trail] | None = None  # its cohorts so far, where somebody follows the run as it goes

    @property
    def name(self) -> str:
        """The path as text that can be written anywhere."""
        return shown(self.folder.path)

    @property
    def n(self) -> int:
        """The number of cohorts."""
        return self.experiment.cohorts

    @cached_property
    def cohorts(self) -> list[Cohort]:
        """Every cohort, from the summary where there is one, else from the records."""
        counts = self.about.get("label_counts")
        samples = [None if row is None else sum(row) for row in counts] if counts else [None] * len(self.about["plan"])
        if self.summary and "by_cohort" in self.summary:
            accounts = self.summary["by_cohort"]
        else:
            accounts = [
                {"cohort": number, "rounds": trail.rounds, "hours": trail.clock / 3600, "stop": trail.stop}
                for number, trail in enumerate(self.trails)
                if trail.rounds
            ]
        return [Cohort(a["cohort"], samples[a["cohort"]], a["rounds"], a["hours"], a["stop"]) for a in accounts]

    @cached_property
    def trails(self) -> list[Trail]:
        """What every cohort's records come to; reading them is the one thing here that may take long."""
        if self.followed is not None:
            return self.followed
        return [_trail(self.folder.rounds(cohort)) for cohort in range(len(self.about["plan"]))]

    @cached_property
    def judged(self) -> list[dict[str, Any]]:
        """Under the rule joint, what all cohorts were worth together, judgement after judgement."""
        lines = records.read(self.folder.judgements())
        for line in lines:
            if not (isinstance(line, dict) and all(_finite(line.get(key)) for key in JUDGED)):
                raise DamagedError(f"{self.folder.judgements()} is damaged: a line lacks {', '.join(JUDGED)}")
        return lines

    @property
    def state(self) -> str:
        """Finished, or how far it has come."""
        if self.summary:
            return "finished"
        stopped = sum(bool(cohort.stop) for cohort in self.cohorts)
        return f"unfinished: {stopped} of {len(self.about['plan'])} cohorts have stopped"


def read_all(paths: Iterable[Path]) -> tuple[list[RunFacts], list[tuple[str, str]]]:
    """All runs that can be read; for each of the others its path and what is wrong with it."""
    good, damaged = [], []
    for path in paths:
        try:
            run = read(path)
            _ = run.cohorts
        except TROUBLE as error:
            damaged.append((shown(path), trouble(error)))
        else:
            good.append(run)
    return good, damaged


def trouble(error: Exception) -> str:
    """What is wrong with a folder, for a page."""
    known = isinstance(error, CpflError)
    return shown(str(error) if known else f"a file in it is damaged: {type(error).__name__} {error}")


def read(path: Path) -> RunFacts:
    """One run folder."""
    folder = RunFolder.open(path)
    experiment, summary = folder.experiment(), folder.summary()
    students = []
    if summary is not None:
        _check(path / "summary.json", summary)
        own = experiment.distillation
        students = [_student(summary, own.at, own.quorum), *_later(folder, experiment)]
    about = folder.about()
    _check_published(path / "run.json", about.get("published"))
    return RunFacts(folder, experiment, about, summary, students)


def _trail(path: Path) -> Trail:
    try:
        return Trail().extend(records.read(path))
    except DamagedError as error:
        told = str(error)
        raise DamagedError(told if str(path) in told else f"{path} is damaged: {told}") from None


def _check_published(path: Path, carried: Any) -> None:
    """A report must not stumble over figures that somebody wrote there by hand."""
    if carried is None:
        return
    lists = [carried.get(key) for key in ("by_n", "at")] if isinstance(carried, dict) else [None]
    rows = [row for rows in lists for row in (rows if isinstance(rows, list) else [None])]
    if not all(isinstance(row, dict) and "n" in row and all(map(_finite, row.values())) for row in rows):
        raise DamagedError(f"{path} is damaged: published is not of the form by_n = [{{n, …}}], at = [{{n, …}}]")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def shown(path: Path | str) -> str:
    """Names may hold bytes that are no text; a page may not."""
    return os.fsencode(path).decode(errors="replace")


def _later(folder: RunFolder, experiment: Experiment) -> Iterable[Student]:
    """Later distillations that differ from the run's own in the moment alone."""
    for path in sorted((folder.path / "distillations").glob("*/summary.json")):
        summary = files.read_json(path)
        settings = summary.get("distillation")
        if isinstance(settings, dict) and _recipe(settings) == _recipe(experiment.distillation.model_dump()):
            _check(path, summary)
            yield _student(summary, settings["at"], settings["quorum"])


def _student(summary: dict[str, Any], at: str, quorum: float) -> Student:
    return Student(summary["student_accuracy"], summary["hours"], hours(at) if at else None, quorum)


def _recipe(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in ("at", "quorum")}


def _check(path: Path, summary: dict[str, Any]) -> None:
    for key in NUMBERS:
        value = summary.get(key)
        if not _finite(value):
            raise DamagedError(f"{path} is damaged: {key} is {value!r}, not a number")
