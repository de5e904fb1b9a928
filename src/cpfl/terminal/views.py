"""A run on the screen: its cohorts with their loss curves, its progress, and the workers of a cluster."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from cpfl.callbacks import Callback, CallbackList
from cpfl.distillation.student import EpochRecord
from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment
from cpfl.terminal.live_view import LiveView
from cpfl.terminal.progress import LEVELS, PLAIN_LEVELS, Cohort, Expected, ProgressEstimate, duration, time_left

AROUND = 4  # lines that are neither of cohorts nor counted: the table's head and last line, and two that stay empty
INDENT = 10  # columns before the facts
BESIDE = 38  # columns of a cohort's line that are neither its curve nor its state
NARROW = 80  # columns below which states are in few words
STATE, WIDE_STATE = 17, 26  # columns of a state, in few words and in more
WORKERS = 6  # workers with a line of their own
FEW = 8  # cohorts of a worker that are named


class RunView(LiveView, Callback):
    """Shows a run: its cohorts with their loss curves, its progress, and the time it may still take.

    A round costs a few additions; a thread draws twice a second, however many rounds there are.
    """

    def __init__(self, console: Console, experiment: Experiment, epochs: int, every_round: bool = False) -> None:
        self._experiment, self._epochs, self._every_round = experiment, epochs, every_round
        self._progress = ProgressEstimate(experiment)
        self._epoch: EpochRecord | None = None
        self._load: Mapping[str, Any] = {}  # of a cluster's workers
        self._distilling = time.monotonic()  # when distillation began, at the latest
        super().__init__(console)

    def __enter__(self) -> Self:
        return self if self._every_round else super().__enter__()

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Count the rounds that were trained before."""
        self._progress.start(sessions)
        if self._progress.rounds:
            stopped = f"{self._progress.stopped} of {len(sessions)} cohorts stopped"
            self.on_message(f"resuming after {self._progress.rounds:,} rounds, {stopped}")
        self._distilling = time.monotonic()

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        """Count the round; without a live view, print every stop, and the progress from time to time."""
        self._progress.add(session, closed)
        self._distilling = time.monotonic()
        if self._every_round:
            self.on_message(self._round(session, closed))
        if session.stopped and not self._is_live():
            self.on_message(
                f"cohort {session.cohort} stopped after {session.round} rounds, "
                f"{session.clock / 3600:.2f} virtual h ({session.stopped})"
            )
        if self._line_due():
            facts = (*self._facts(), self._speed(), time_left(self._progress.seconds_left()))
            self.on_message(" · ".join(filter(None, facts)))
        self._changed()

    def on_epoch(self, record: EpochRecord) -> None:
        """Show the student's loss and accuracy."""
        self._epoch = record
        if self._every_round or self._line_due():
            self.on_message(f"distill: {' · '.join(self._student(record))}")
        self._changed()

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """Show which worker of a cluster trains what."""
        self._load = load

    @cached_property
    def _metric(self) -> str:
        from cpfl.objectives.base import objective  # by now torch is loaded

        return objective(self._experiment.model).metric

    def _round(self, session: Session, closed: ClosedRound) -> str:
        record = closed.record
        validation = "" if record.validation is None else f" · validation loss {record.validation:.4f}"
        when = f"cohort {session.cohort} · round {session.round:,} · {session.clock / 3600:.2f} virtual h"
        return f"{when} · training loss {record.loss:.4f}{validation}"

    def _facts(self) -> list[str]:
        progress = self._progress
        stopped = f"{progress.stopped} of {len(progress.cohorts)} stopped"
        met = max((cohort.session.phases for cohort in progress.cohorts), default=0) if self._experiment.meets else 0
        meetings = f"{met} meeting{'s' * (met > 1)}" if met else ""
        return [stopped, f"{progress.rounds:,} rounds", f"{progress.clock / 3600:.2f} virtual h", meetings]

    def _speed(self) -> str:
        """Since this process started or resumed the run."""
        return f"{self._progress.samples / max(time.monotonic() - self._progress.began, 1e-9):,.0f} samples/s"

    def _student(self, record: EpochRecord) -> list[str]:
        score = f"{self._metric} {record.accuracy:.2f} %"
        facts = [f"epoch {record.epoch} of {self._epochs}", f"loss {record.loss:.4f}", score]
        if epochs_left := self._epochs - record.epoch:
            seconds = (time.monotonic() - self._distilling) / record.epoch * epochs_left
            facts.append(time_left(Expected(seconds, sure=True)))
        return facts

    def _lines(self) -> Sequence[Text | str]:
        progress = self._progress
        if self._epoch is not None:
            bar = f"{'distill':<{INDENT}}{self._bar(self._epoch.epoch / self._epochs)} "
            return self._flow(bar, self._student(self._epoch), INDENT)
        if not progress.cohorts:
            return ["preparing …"]
        over = progress.stopped == len(progress.cohorts)
        train = self._flow(f"{'train':<{INDENT}}{self._bar(progress.share())} ", self._facts(), INDENT)
        if over:
            return [*train, f"{'distill':<{INDENT}}…"]
        left = time_left(progress.seconds_left()) if progress.rounds else "until the first round ends"
        elapsed = f"{duration(time.monotonic() - progress.began)} of real time"
        train += self._flow(" " * INDENT, [elapsed, self._speed(), left], INDENT)
        workers = worker_lines(self._load)
        return [*train, *self._table(len(train) + len(workers)), *workers]

    def _table(self, others: int) -> list[Text | str]:
        """As many cohorts as the screen is high, those that still train first, by their virtual hours."""
        height = max(3, self._console.height - AROUND - others)
        cohorts = self._progress.cohorts
        order = sorted(cohorts, key=lambda c: (bool(c.session.stopped), -c.session.clock))
        shown, hidden = sorted(order[:height], key=lambda c: c.session.cohort), order[height:]
        levels, (low, high) = LEVELS if self._unicode else PLAIN_LEVELS, self._progress.scale()
        scale = f"{levels[0]} {low:.3g} to {levels[-1]} {high:.3g}" if high > low else ""
        lines: list[Text | str] = [
            Text(f"{'cohort':>6}{'rounds':>8}{'virtual h':>11}{'loss':>8}  {scale}", style="bold")
        ]
        lines += [self._row(cohort, levels, low, high) for cohort in shown]
        if hidden:
            stopped = sum(bool(c.session.stopped) for c in hidden)
            dots = "…" if self._unicode else "..."
            lines.append(f"{dots:>6} and {len(hidden)} more: {len(hidden) - stopped} training, {stopped} stopped")
        return lines

    def _row(self, cohort: Cohort, levels: str, low: float, high: float) -> Text:
        """A cohort; its curve is as long as its rounds, next to those of the cohort with the most."""
        session, narrow = cohort.session, self._console.width < NARROW
        loss = "" if cohort.average is None else f"{cohort.average:.3f}"
        width = min(60, max(6, self._console.width - BESIDE - (STATE if narrow else WIDE_STATE)))
        most = max(other.session.round for other in self._progress.cohorts)
        line = cohort.curve.line(max(1, round(width * session.round / max(1, most))), levels, low, high)
        row = Text(f"{session.cohort:>6}{session.round:>8,}{session.clock / 3600:>11.2f}{loss:>8}  ")
        row.append(f"{line:<{width}}", style="cyan")
        row.append(f"  {self._state(session, narrow)}", style="green" if session.stopped else "")
        return row

    def _state(self, session: Session, narrow: bool) -> str:
        if session.stopped:
            return f"stop: {session.stopped}" if narrow else f"stopped: {session.stopped}"
        stopping = self._experiment.stopping
        if session.waiting:
            return f"{'at' if narrow else 'waits for'} the {'meeting' if self._experiment.meets else 'evaluation'}"
        if stopping.rule == "plateau" and session.round:
            return f"no gain {session.round - session.best_round}{'/' if narrow else ' of '}{stopping.patience}"
        if stopping.rule == "joint" and session.round and not self._experiment.meets:
            left = self._progress.rounds_left(session).least
            return f"{left:,} to evaluation" if narrow else f"evaluated in {left:,} rounds"
        return f"{self._progress.rounds_left(session).most:,} rounds left" if session.round else "waiting"


@contextmanager
def following(
    verbose: bool | None, callback: Callback | None, experiment: Experiment, epochs: int = 0
) -> Iterator[Callback]:
    """The callback, with a view of the run on standard error or in a notebook.

    `verbose` is whether to show it; None: where there is a terminal or a notebook.
    """
    own, console = callback or Callback(), progress_console()
    if not (is_shown(console) if verbose is None else verbose):
        yield own
        return
    with RunView(console, experiment, epochs or experiment.distillation.epochs) as view:
        yield CallbackList(own, view)


def progress_console() -> Console:
    """Where a program shows progress: its standard output is its own."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def is_shown(console: Console) -> bool:
    """Whether somebody looks at it: in a terminal or a notebook."""
    return console.is_terminal or console.is_jupyter


def worker_lines(load: Mapping[str, Any]) -> list[str]:
    """A line for each worker of a cluster, the busiest ones if there are too many."""
    rows = list(load.get("workers", ()))
    if not rows:
        return []
    chosen = rows if len(rows) <= WORKERS else sorted(rows, key=lambda row: -row["samples_per_second"])[:WORKERS]
    lines = [f"{'worker':<12}{'load':>6}{'samples/s':>12}   cohorts"]
    for row in chosen:
        lines.append("{0:<12}{load:>6}{speed:>12}   {cohorts}".format(row["worker"], **worker_cells(row)))
    if rest := len(rows) - len(chosen):
        busy = sum(bool(row["cohorts"]) for row in rows)
        lines.append(f"and {rest} more; {busy} of {len(rows)} workers have cohorts")
    return lines


def worker_cells(worker: Mapping[str, Any]) -> dict[str, str]:
    """Load, speed and cohorts of a worker as text."""
    load, speed = f"{100 * float(worker['load']):.0f} %", f"{float(worker['samples_per_second']):,.0f}"
    return {"load": load, "speed": speed, "cohorts": first_cohorts(worker["cohorts"])}


def first_cohorts(cohorts: Sequence[int]) -> str:
    """The first few by number, and how many more."""
    first = ", ".join(map(str, cohorts[:FEW]))
    return f"{first} and {len(cohorts) - FEW} more" if len(cohorts) > FEW else first or "none"
