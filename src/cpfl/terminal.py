"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from cpfl.distillation.student import EpochRecord
from cpfl.federation.session import Closed, Session

QUIET_SECONDS = 10.0  # between plain lines
WIDE = 100  # columns from which on there is room for everything


class Terminal:
    """A watcher that tells of rounds, stops and epochs."""

    def __init__(self, console: Console, cohorts: int, epochs: int) -> None:
        self._console, self._cohorts, self._epochs = console, cohorts, epochs
        self._live = console.is_terminal
        self._rounds = self._samples = self._stopped = 0
        self._hours = 0.0
        self._began = self._told = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24 if console.width >= WIDE else 10),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._federate = self._progress.add_task("federate", total=cohorts, facts="")
        self._distil = self._progress.add_task("distil  ", total=epochs, facts="", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_start(self, sessions: Sequence[Session]) -> None:
        """Count what was done before."""
        self._rounds = sum(session.round for session in sessions)
        self._stopped = sum(bool(session.stopped) for session in sessions)
        if self._rounds:
            self._say(f"going on after {self._rounds:,} rounds, {self._stopped} of {len(sessions)} cohorts stopped")
        self._began = time.monotonic()

    def on_round(self, session: Session, closed: Closed) -> None:
        """Count it; tell of a stop."""
        self._rounds += 1
        self._samples += closed.record.samples
        self._hours = max(self._hours, session.clock / 3600)
        if session.stopped:
            self._stopped += 1
            self._say(
                f"cohort {session.cohort} stopped after {session.round} rounds, "
                f"{session.clock / 3600:.2f} h ({session.stopped})"
            )
        speed = self._samples / max(time.monotonic() - self._began, 1e-9)
        facts = f"{self._stopped} of {self._cohorts} stopped · {self._rounds:,} rounds · {self._hours:.2f} h"
        if self._console.width >= WIDE:
            facts += f" · {speed:,.0f} samples/s"
        self._progress.update(self._federate, completed=self._stopped, facts=facts)
        self._now_and_then(facts)

    def on_epoch(self, record: EpochRecord) -> None:
        """Tell how the student does."""
        facts = f"epoch {record.epoch} of {self._epochs} · loss {record.loss:.4f} · {record.accuracy:.2f} %"
        self._progress.update(self._distil, completed=record.epoch, facts=facts, visible=True)
        self._now_and_then(f"distil: {facts}")

    def on_note(self, text: str) -> None:
        """Something worth a line."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=not self._live)

    def _now_and_then(self, text: str) -> None:
        if not self._live and time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            self._say(text)
