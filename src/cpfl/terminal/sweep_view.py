"""A sweep on the screen: one line for each run that ends, and a live line for all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cpfl.api import Run
from cpfl.errors import CpflError
from cpfl.sweep.plan import Plan
from cpfl.sweep.workers import Pulse
from cpfl.terminal.course import duration
from cpfl.terminal.live import LiveView

QUIET_SECONDS = 30.0  # between plain lines


class SweepView(LiveView):
    """A watcher of a sweep; keeps the summaries of what is finished."""

    def __init__(self, console: Console) -> None:
        self.plan: Plan | None = None
        self.summaries: list[dict[str, Any]] = []
        self.failures: list[tuple[Path, Exception]] = []
        self._total = self._before = 0  # runs of the sweep; those that were finished when it began
        self._pulses: dict[str, Pulse] = {}  # of runs that go on
        self._rounds = 0  # of runs that have ended
        self._began = self._told = time.monotonic()
        super().__init__(console, self._draw)

    def on_plan(self, plan: Plan, finished: Sequence[str]) -> None:
        """Count what there is to do."""
        self.plan, self._total, self._before = plan, len(plan.runs), len(finished)
        self._began = self._told = time.monotonic()
        if finished:
            self.on_note(f"{len(finished)} of {self._total} runs are finished already")

    def on_pulse(self, pulse: Pulse) -> None:
        """Remember how far it has come."""
        self._pulses[pulse.name] = pulse
        self.on_wait()

    def on_wait(self) -> None:
        """Where there is no live line, tell now and then."""
        now = time.monotonic()
        if not self._live.is_started and now - self._told > QUIET_SECONDS:
            self._told = now
            self.on_note(self._facts())

    def on_run(self, run: Run) -> None:
        """One line."""
        self.summaries.append(summary := run.summary)
        self._end(run.path.name, summary["rounds"])
        self.on_note(
            f"{self._what(run.path.name, summary)}: {summary['student_accuracy']:.1f} %, {summary['hours']:.2f} h, "
            f"{summary['cpu_hours']:.1f} CPU h  ({summary['wall_seconds']:.1f} s)"
        )

    def on_failure(self, path: Path, error: Exception) -> None:
        """One line."""
        self.failures.append((path, error))
        self._end(path.name, 0)
        self.on_note(f"{path.name} failed: {sentence(error)}")

    def on_note(self, text: str) -> None:
        """Something worth a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=not self._live.is_started)

    def _end(self, name: str, rounds: int) -> None:
        ended = self._pulses.pop(name, None)
        self._rounds += ended.rounds if ended and not rounds else rounds

    def _what(self, name: str, summary: Mapping[str, Any]) -> str:
        words = [f"n = {summary['cohorts']}", f"seed {summary['seed']}"]
        if self.plan is not None:
            words += [f"{key} = {value}" for key, value in self.plan.varied(name).items()]
        return ", ".join(words)

    def _facts(self) -> str:
        ended = len(self.summaries) + len(self.failures)
        rounds = self._rounds + sum(pulse.rounds for pulse in self._pulses.values())
        facts = f"{ended} of {self._total} runs ended · {rounds:,} rounds"
        if self.failures:
            facts += f" · {len(self.failures)} failed"
        new = ended - self._before
        if new > 0 and ended < self._total:
            # Runs differ, n = 1 from n = 8 most of all: a guess from the mean of those that were done.
            each = (time.monotonic() - self._began) / (new + 0.5 * len(self._pulses))
            facts += f" · about {duration(each * (self._total - ended - 0.5 * len(self._pulses)))} left"
        return facts

    def _draw(self) -> Text:
        width = self._console.width
        unicode = self._console.options.encoding.startswith("utf")
        full, empty = ("━", "·") if unicode else ("#", ".")
        share = (len(self.summaries) + len(self.failures)) / max(self._total, 1)
        size = 24 if width >= 100 else 12
        bar = full * round(share * size) + empty * (size - round(share * size))
        lines = [f"sweep {bar} {self._facts()}" if self._total else "preparing …"]
        for pulse in sorted(self._pulses.values())[: max(1, self._console.height - 4)]:
            state = f"distil epoch {pulse.epoch}" if pulse.epoch else f"{pulse.stopped} of {pulse.cohorts} stopped"
            lines.append(f"  {pulse.name}: {pulse.rounds:,} rounds · {state}")
        return Text("\n".join(line[: width - 1] for line in lines))


def sentence(error: Exception) -> str:
    """A failure in one line; what is no user's mistake is named by its type."""
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, CpflError) else f"{type(error).__name__}: {first}"
