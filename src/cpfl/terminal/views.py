"""A run and a sweep on the screen: drawn twice a second on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cpfl.api import Run
from cpfl.callbacks import Callback
from cpfl.distillation.student import EpochRecord
from cpfl.errors import failure, printable
from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment
from cpfl.sweep import RunProgress, SweepCallback, SweepGrid
from cpfl.terminal.progress import LEVELS, PLAIN_LEVELS, Cohort, Expected, ProgressEstimate, duration, time_left

REFRESH = 2  # times a second
AROUND = 6  # lines beside those of the cohorts
WORKERS = 6  # workers with a line of their own
FEW = 8  # cohorts of a worker that are named


class LiveView:
    """A view that a `with` statement keeps on the screen. It draws at once, so call this last in a constructor."""

    quiet_seconds = 10.0  # between plain lines, where there is no terminal

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = console.options.encoding.startswith("utf")
        self._last_line = time.monotonic()
        refresh: dict[str, Any] = {"refresh_per_second": REFRESH, "transient": True, "vertical_overflow": "crop"}
        self._live = Live(console=console, get_renderable=self._draw, **refresh)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_message(self, text: str) -> None:
        """Print a line."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=not self._live.is_started)

    def _draw(self) -> Text:
        """All lines, truncated and not wrapped: a line too many would push the view up the screen."""
        lines = [line if isinstance(line, Text) else Text(printable(line)) for line in self._lines()]
        for line in lines:
            line.truncate(self._console.width - 1)
        return Text("\n").join(lines)

    def _lines(self) -> Sequence[Text | str]:
        raise NotImplementedError

    def _line_due(self) -> bool:
        """Whether it is time for another plain line; never while there is a live view."""
        now = time.monotonic()
        due = not self._live.is_started and now - self._last_line > self.quiet_seconds
        if due:
            self._last_line = now
        return due

    def _bar(self, share: float) -> str:
        size = 24 if self._console.width >= 100 else 12
        full = round(share * size)
        done, open_ = ("━", "·") if self._unicode else ("#", ".")
        return done * full + open_ * (size - full)


class RunView(LiveView, Callback):
    """Shows a run: its cohorts with their loss curves, its progress, and the time it may still take.

    A round costs a few additions; a thread draws twice a second, however many rounds there are.
    """

    def __init__(self, console: Console, experiment: Experiment, epochs: int) -> None:
        self._experiment, self._epochs = experiment, epochs
        self._progress = ProgressEstimate(experiment)
        self._epoch: EpochRecord | None = None
        self._load: Mapping[str, Any] = {}  # of a cluster's workers
        self._distilling = time.monotonic()  # when distillation began, at the latest
        super().__init__(console)

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
        if session.stopped and not self._live.is_started:
            self.on_message(
                f"cohort {session.cohort} stopped after {session.round} rounds, "
                f"{session.clock / 3600:.2f} h ({session.stopped})"
            )
        if self._line_due():
            facts = (self._facts(), self._speed(), time_left(self._progress.seconds_left()))
            self.on_message(" · ".join(filter(None, facts)))

    def on_epoch(self, record: EpochRecord) -> None:
        """Show the student's loss and accuracy."""
        self._epoch = record
        if self._line_due():
            self.on_message(f"distill: {self._student(record)}")

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """Show which worker of a cluster trains what."""
        self._load = load

    @cached_property
    def _metric(self) -> str:
        from cpfl.objectives.base import objective  # by now torch is loaded

        return objective(self._experiment.model).metric

    def _facts(self) -> str:
        progress = self._progress
        stopped = f"{progress.stopped} of {len(progress.cohorts)} stopped"
        return f"{stopped} · {progress.rounds:,} rounds · {progress.clock / 3600:.2f} h"

    def _speed(self) -> str:
        """Since this process started or resumed the run."""
        return f"{self._progress.samples / max(time.monotonic() - self._progress.began, 1e-9):,.0f} samples/s"

    def _student(self, record: EpochRecord) -> str:
        facts = (
            f"epoch {record.epoch} of {self._epochs} · loss {record.loss:.4f} · {self._metric} {record.accuracy:.2f} %"
        )
        epochs_left = self._epochs - record.epoch
        seconds = (time.monotonic() - self._distilling) / record.epoch * epochs_left
        return f"{facts} · {time_left(Expected(seconds, sure=True))}" if epochs_left else facts

    def _lines(self) -> Sequence[Text | str]:
        progress = self._progress
        if self._epoch is not None:
            return [f"{'distill':<9} {self._bar(self._epoch.epoch / self._epochs)} {self._student(self._epoch)}"]
        if not progress.cohorts:
            return ["preparing …"]
        train = f"{'train':<9} {self._bar(progress.stopped / len(progress.cohorts))} {self._facts()}"
        if progress.stopped == len(progress.cohorts):
            return [train, f"{'distill':<9} …"]
        left = time_left(progress.seconds_left()) if progress.rounds else "until the first round ends"
        elapsed = duration(time.monotonic() - progress.began)
        facts = " " * 10 + " · ".join(filter(None, (elapsed, self._speed(), left)))
        workers = worker_lines(self._load)
        return [train, facts, *self._table(len(workers)), *workers]

    def _table(self, below: int) -> list[Text | str]:
        """As many cohorts as the screen is high, those that still train first, by their virtual hours."""
        height = max(3, self._console.height - AROUND - below)
        cohorts = self._progress.cohorts
        order = sorted(cohorts, key=lambda c: (bool(c.session.stopped), -c.session.clock))
        shown, hidden = sorted(order[:height], key=lambda c: c.session.cohort), order[height:]
        width = min(60, max(8, self._console.width - 62))
        lines: list[Text | str] = [Text(f"{'cohort':>8}{'rounds':>8}{'hours':>9}   validation loss", style="bold")]
        lines += [self._row(cohort, width) for cohort in shown]
        if hidden:
            stopped = sum(bool(c.session.stopped) for c in hidden)
            dots = "…" if self._unicode else "..."
            lines.append(f"{dots:>8} and {len(hidden)} more: {len(hidden) - stopped} training, {stopped} stopped")
        return lines

    def _row(self, cohort: Cohort, width: int) -> Text:
        session = cohort.session
        loss = "" if cohort.average is None else f"{cohort.average:.4f}"
        line = cohort.curve.line(width, LEVELS if self._unicode else PLAIN_LEVELS)
        row = Text(f"{session.cohort:>8}{session.round:>8,}{session.clock / 3600:>9.2f}{loss:>9}  ")
        row.append(f"{line:<{width}}", style="cyan")
        row.append(f"  {self._state(session)}", style="green" if session.stopped else "")
        return row

    def _state(self, session: Session) -> str:
        if session.stopped:
            return f"stopped: {session.stopped}"
        stopping = self._experiment.stopping
        if stopping.rule == "plateau" and session.round:
            return f"no gain {session.round - session.best_round:>3} of {stopping.patience}"
        if session.waiting:
            return "waits for the meeting" if self._experiment.meets else "waits for the evaluation"
        if stopping.rule == "joint" and session.round:
            return f"evaluated in {self._progress.rounds_left(session).least:,} rounds"
        return f"{self._progress.rounds_left(session).most:,} rounds left" if session.round else "waiting"


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


class SweepView(LiveView, SweepCallback):
    """Shows a sweep: one line for each run that ends, and a live line for all of them."""

    quiet_seconds = 30.0

    def __init__(self, console: Console) -> None:
        self.grid: SweepGrid | None = None
        self.failures: list[tuple[Path, Exception]] = []
        self._total = self._before = 0  # runs of the sweep; those that were finished when it began
        self._finished = 0  # runs, with those that were finished before
        self._progress: dict[str, RunProgress] = {}  # of runs that train
        self._rounds = 0  # of runs that have ended
        self._began = time.monotonic()
        super().__init__(console)

    def on_start(self, grid: SweepGrid, finished: Sequence[str]) -> None:
        """Count the runs."""
        self.grid, self._total, self._before = grid, len(grid.runs), len(finished)
        self._began = self._last_line = time.monotonic()
        if finished:
            self.on_message(f"{len(finished)} of {self._total} runs are finished already")

    def on_progress(self, progress: RunProgress) -> None:
        """Remember how far a run has come."""
        self._progress[progress.name] = progress
        self.on_wait()

    def on_wait(self) -> None:
        """Without a live view, print the progress from time to time."""
        if self._line_due():
            self.on_message(self._facts())

    def on_run(self, run: Run) -> None:
        """Print the outcome."""
        summary = run.summary
        self._finished += 1
        self._progress.pop(run.path.name, None)
        self._rounds += summary["rounds"]
        words = [f"n = {summary['cohorts']}", f"seed {summary['seed']}"]
        if self.grid is not None:
            words += [f"{key} = {value}" for key, value in self.grid.varied(run.path.name).items()]
        score = f"{summary.get('metric', 'accuracy')} {summary['student_accuracy']:.1f} %"
        self.on_message(
            f"{', '.join(words)}: {score}, {summary['hours']:.2f} h, "
            f"{summary['cpu_hours']:.1f} CPU h  ({summary['wall_seconds']:.1f} s)"
        )

    def on_failure(self, path: Path, error: Exception) -> None:
        """Print the error."""
        self.failures.append((path, error))
        ended = self._progress.pop(path.name, None)
        self._rounds += ended.rounds if ended else 0
        self.on_message(f"{path.name} failed: {failure(error)}")

    def _facts(self) -> str:
        ended, active = self._finished + len(self.failures), self._progress.values()
        rounds = self._rounds + sum(progress.rounds for progress in active)
        facts = f"{ended} of {self._total} runs ended · {rounds:,} rounds"
        if self.failures:
            facts += f" · {len(self.failures)} failed"
        new = ended - self._before
        if new > 0 and ended < self._total:
            # Runs differ, n = 1 from n = 8 most of all: an estimate from the mean of those that have ended.
            each = (time.monotonic() - self._began) / (new + 0.5 * len(active))
            facts += f" · about {duration(each * (self._total - ended - 0.5 * len(active)))} left"
        return facts

    def _lines(self) -> Sequence[Text | str]:
        if not self._total:
            return ["preparing …"]
        lines = [f"sweep {self._bar((self._finished + len(self.failures)) / self._total)} {self._facts()}"]
        for progress in sorted(self._progress.values())[: max(1, self._console.height - 4)]:
            training = f"{progress.stopped} of {progress.cohorts} stopped"
            state = f"distill epoch {progress.epoch}" if progress.epoch else training
            lines.append(f"  {progress.name}: {progress.rounds:,} rounds · {state}")
        return lines
