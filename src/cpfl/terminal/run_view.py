"""One run on the screen: its cohorts with their curves, how far it has come, how long it may still take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from cpfl.distillation.student import EpochRecord
from cpfl.experiment import Experiment
from cpfl.federation.session import Closed, Session
from cpfl.terminal import workers
from cpfl.terminal.course import Cohort, Course, duration, spoken
from cpfl.terminal.live import LiveView
from cpfl.terminal.sparkline import LEVELS, PLAIN_LEVELS

QUIET_SECONDS = 10.0  # between plain lines
AROUND = 6  # lines beside the cohorts' own


class RunView(LiveView):
    """A watcher that shows a run: live on a terminal, as lines elsewhere.

    A round costs it a few additions; drawing is done by a thread, twice a second, however many rounds there are.
    """

    def __init__(self, console: Console, experiment: Experiment, epochs: int) -> None:
        self._experiment, self._epochs = experiment, epochs
        self._unicode = console.options.encoding.startswith("utf")
        self._course = Course(experiment)
        self._epoch: EpochRecord | None = None
        self._load: Mapping[str, Any] = {}  # of a cluster's workers
        self._distilling = self._told = time.monotonic()
        super().__init__(console, self._draw, vertical_overflow="crop")

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Count what was done before."""
        self._course.start(sessions)
        if self._course.rounds:
            stopped = f"{self._course.stopped} of {len(sessions)} cohorts stopped"
            self.on_note(f"going on after {self._course.rounds:,} rounds, {stopped}")
        self._distilling = time.monotonic()

    def on_round(self, session: Session, closed: Closed) -> None:
        """Count it; where there is no live view, tell of a stop, and now and then of the rest."""
        self._course.add(session, closed)
        self._distilling = now = time.monotonic()
        if self._live.is_started:
            return
        if session.stopped:
            self.on_note(
                f"cohort {session.cohort} stopped after {session.round} rounds, "
                f"{session.clock / 3600:.2f} h ({session.stopped})"
            )
        if now - self._told > QUIET_SECONDS:
            self._told = now
            self.on_note(self._facts(True))

    def on_epoch(self, record: EpochRecord) -> None:
        """Tell how the student does."""
        self._epoch = record
        if not self._live.is_started and time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            self.on_note(f"distil: {self._student(record)}")

    def on_workers(self, load: Mapping[str, Any]) -> None:
        """Who trains what on a cluster."""
        self._load = load

    def on_note(self, text: str) -> None:
        """Something worth a line."""
        live = self._live.is_started
        self._console.print(text, highlight=False, markup=False, soft_wrap=not live)

    def _facts(self, wide: bool) -> str:
        course = self._course
        facts = f"{course.stopped} of {len(course.cohorts)} stopped · {course.rounds:,} rounds"
        facts += f" · {course.clock / 3600:.2f} h"
        if wide:
            facts += f" · {course.samples_per_second():,.0f} samples/s"
            if left := spoken(course.seconds_left()):
                facts += f" · {left}"
        return facts

    def _student(self, record: EpochRecord) -> str:
        facts = f"epoch {record.epoch} of {self._epochs} · loss {record.loss:.4f} · {record.accuracy:.2f} %"
        to_go = self._epochs - record.epoch
        seconds = (time.monotonic() - self._distilling) / record.epoch * to_go
        return f"{facts} · {spoken((seconds, seconds))}" if to_go else facts

    # The live view.

    def _draw(self) -> Group:
        course, width = self._course, self._console.width
        elapsed = duration(time.monotonic() - course.began)
        if self._epoch is not None:
            bar = self._bar(self._epoch.epoch / self._epochs, width)
            return _lines(width, self._line("distil", bar, self._student(self._epoch)))
        if not course.cohorts:
            return _lines(width, "preparing …")
        if course.stopped == len(course.cohorts):
            return _lines(width, self._line("federate", self._bar(1, width), self._facts(False)), "distil    …")
        left = spoken(course.seconds_left()) if course.rounds else "until the first round is over"
        told = workers.lines(self._load)
        speed = f"{course.samples_per_second():,.0f} samples/s"
        return _lines(
            width,
            self._line("federate", self._bar(course.stopped / len(course.cohorts), width), self._facts(False)),
            " " * 10 + " · ".join(filter(None, (elapsed, speed, left))),
            *self._table(width, len(told)),
            *told,
        )

    def _line(self, name: str, bar: str, facts: str) -> str:
        return f"{name:<9} {bar} {facts}"

    def _bar(self, share: float, width: int) -> str:
        size = 24 if width >= 100 else 12
        full = round(share * size)
        done, open_ = ("━", "·") if self._unicode else ("#", ".")
        return done * full + open_ * (size - full)

    def _table(self, width: int, below: int = 0) -> list[Text | str]:
        """As many cohorts as the screen is high: those that train the longest by their own clock, then the latest to
        stop; and how many are left out."""
        room = max(3, self._console.height - AROUND - below)
        shown = cohorts = self._course.cohorts
        if len(cohorts) > room:
            going = [c for c in cohorts if not c.session.stopped]
            ended = [c for c in cohorts if c.session.stopped]
            going.sort(key=lambda c: -c.session.clock)
            ended.sort(key=lambda c: -c.session.clock)
            shown = sorted((going + ended)[:room], key=lambda c: c.session.cohort)
        curve = min(60, max(8, width - 62))
        lines: list[Text | str] = [Text(f"{'cohort':>8}{'rounds':>8}{'hours':>9}   validation loss", style="bold")]
        lines += [self._row(cohort, curve) for cohort in shown]
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
        if session.paused:
            return "waits to be judged"
        if stopping.rule == "joint" and session.round:
            return f"judged in {self._course.left(session).least:,} rounds"
        return f"{self._course.left(session).most:,} rounds to go" if session.round else "waiting"


def _lines(width: int, *lines: Text | str) -> Group:
    """Cut, not wrapped: a line too many would push the view up the screen."""
    texts = [line if isinstance(line, Text) else Text(line) for line in lines]
    for text in texts:
        text.truncate(width - 1)
    return Group(*texts)
