"""One run on the screen: its cohorts with their loss curves, its progress, and the time it may still take."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from cpfl.callbacks import Callback
from cpfl.distillation.student import EpochRecord
from cpfl.federation.session import ClosedRound, Session
from cpfl.settings import Experiment
from cpfl.terminal.live import LEVELS, PLAIN_LEVELS, LiveView
from cpfl.terminal.progress import Cohort, ProgressEstimate, duration, time_left

AROUND = 6  # lines beside those of the cohorts
WORKERS = 6  # workers with a line of their own
FEW = 8  # cohorts of a worker that are named


class RunView(LiveView, Callback):
    """Shows a run: live on a terminal, as lines elsewhere.

    A round costs a few additions; a thread draws twice a second, however many rounds there are.
    """

    def __init__(self, console: Console, experiment: Experiment, epochs: int) -> None:
        self._experiment, self._epochs = experiment, epochs
        self._progress = ProgressEstimate(experiment)
        self._epoch: EpochRecord | None = None
        self._load: Mapping[str, Any] = {}  # of a cluster's workers
        self._distilling = time.monotonic()  # when distillation began, at the latest
        super().__init__(console, self._draw, vertical_overflow="crop")

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
            self.on_message(self._facts(True))

    def on_epoch(self, record: EpochRecord) -> None:
        """Show the student's loss and accuracy."""
        self._epoch = record
        if self._line_due():
            self.on_message(f"distill: {self._student(record)}")

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """Show which worker of a cluster trains what."""
        self._load = load

    def _facts(self, wide: bool) -> str:
        progress = self._progress
        facts = f"{progress.stopped} of {len(progress.cohorts)} stopped · {progress.rounds:,} rounds"
        facts += f" · {progress.clock / 3600:.2f} h"
        if wide:
            facts += f" · {progress.samples_per_second():,.0f} samples/s"
            if left := time_left(progress.seconds_left()):
                facts += f" · {left}"
        return facts

    def _student(self, record: EpochRecord) -> str:
        facts = f"epoch {record.epoch} of {self._epochs} · loss {record.loss:.4f} · {record.accuracy:.2f} %"
        epochs_left = self._epochs - record.epoch
        seconds = (time.monotonic() - self._distilling) / record.epoch * epochs_left
        return f"{facts} · {time_left((seconds, seconds))}" if epochs_left else facts

    # The live view.

    def _draw(self) -> Group:
        progress = self._progress
        if self._epoch is not None:
            bar = self._bar(self._epoch.epoch / self._epochs)
            return self._lines(f"{'distill':<9} {bar} {self._student(self._epoch)}")
        if not progress.cohorts:
            return self._lines("preparing …")
        train = f"{'train':<9} {self._bar(progress.stopped / len(progress.cohorts))} {self._facts(False)}"
        if progress.stopped == len(progress.cohorts):
            return self._lines(train, f"{'distill':<9} …")
        left = time_left(progress.seconds_left()) if progress.rounds else "until the first round ends"
        elapsed = duration(time.monotonic() - progress.began)
        speed = f"{progress.samples_per_second():,.0f} samples/s"
        workers = worker_lines(self._load)
        facts = " " * 10 + " · ".join(filter(None, (elapsed, speed, left)))
        return self._lines(train, facts, *self._table(len(workers)), *workers)

    def _lines(self, *lines: Text | str) -> Group:
        """Truncated, not wrapped: a line too many would push the view up the screen."""
        texts = [line if isinstance(line, Text) else Text(line) for line in lines]
        for text in texts:
            text.truncate(self._console.width - 1)
        return Group(*texts)

    def _table(self, below: int) -> list[Text | str]:
        """As many cohorts as the screen is high, those that still train first, by their virtual hours."""
        height = max(3, self._console.height - AROUND - below)
        shown = cohorts = self._progress.cohorts
        if len(cohorts) > height:
            shown = sorted(cohorts, key=lambda c: (bool(c.session.stopped), -c.session.clock))[:height]
            shown.sort(key=lambda c: c.session.cohort)
        width = min(60, max(8, self._console.width - 62))
        lines: list[Text | str] = [Text(f"{'cohort':>8}{'rounds':>8}{'hours':>9}   validation loss", style="bold")]
        lines += [self._row(cohort, width) for cohort in shown]
        if rest := len(cohorts) - len(shown):
            hidden = sum(bool(c.session.stopped) for c in cohorts) - sum(bool(c.session.stopped) for c in shown)
            dots = "…" if self._unicode else "..."
            lines.append(f"{dots:>8} and {rest} more: {rest - hidden} training, {hidden} stopped")
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
            return "waits for the evaluation"
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
        load_and_speed = f"{100 * row['load']:>4.0f} %{row['samples_per_second']:>12,.0f}"
        lines.append(f"{row['worker']:<12}{load_and_speed}   {first_cohorts(row['cohorts'])}")
    if rest := len(rows) - len(chosen):
        busy = sum(bool(row["cohorts"]) for row in rows)
        lines.append(f"and {rest} more; {busy} of {len(rows)} workers have cohorts")
    return lines


def first_cohorts(cohorts: Sequence[int]) -> str:
    """The first few by number, and how many more."""
    first = ", ".join(map(str, cohorts[:FEW]))
    return f"{first} and {len(cohorts) - FEW} more" if len(cohorts) > FEW else first or "none"
