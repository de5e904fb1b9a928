"""A sweep on the screen: one line for each run that ends, and live lines for those in progress."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cpfl.errors import failure
from cpfl.inference.run import Run
from cpfl.sweeps.callback import RunProgress, SweepCallback
from cpfl.sweeps.grid import SweepGrid
from cpfl.terminal.live_view import LiveView
from cpfl.terminal.progress import duration
from cpfl.terminal.views import is_shown, progress_console

INDENT = 6  # columns before the facts that need another line


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
            self.on_message(" · ".join(self._facts()))
        self._changed()

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
            f"{', '.join(words)}: {score}, {summary['hours']:.2f} virtual h, "
            f"{summary['cpu_hours']:.1f} virtual CPU h  ({duration(summary['wall_seconds'])} of real time)"
        )

    def on_failure(self, path: Path, error: Exception) -> None:
        """Print the error."""
        self.failures.append((path, error))
        ended = self._progress.pop(path.name, None)
        self._rounds += ended.rounds if ended else 0
        self.on_message(f"{path.name} failed: {failure(error)}")

    def _facts(self) -> list[str]:
        ended, active = self._finished + len(self.failures), self._progress.values()
        rounds = self._rounds + sum(progress.rounds for progress in active)
        facts = [f"{ended} of {self._total} runs ended", f"{rounds:,} rounds"]
        if self.failures:
            facts.append(f"{len(self.failures)} failed")
        new = ended - self._before
        if new > 0 and ended < self._total:
            # Runs differ, n = 1 from n = 8 most of all: an estimate from the mean of those that have ended.
            each = (time.monotonic() - self._began) / (new + 0.5 * len(active))
            facts.append(f"about {duration(each * (self._total - ended - 0.5 * len(active)))} left")
        return facts

    def _lines(self) -> Sequence[Text | str]:
        if not self._total:
            return ["preparing …"]
        bar = f"sweep {self._bar((self._finished + len(self.failures)) / self._total)} "
        lines = self._flow(bar, self._facts(), INDENT)
        return [*lines, *self._active(len(lines))]

    def _active(self, above: int) -> list[str]:
        """Lines for the runs that train, as many as fit below so many others."""
        lines: list[str] = []
        for progress in sorted(self._progress.values())[: max(1, self._console.height - 3 - above)]:
            state = f"{progress.stopped} of {progress.cohorts} stopped"
            if progress.epoch:
                state = f"distill epoch {progress.epoch}"
            elif progress.meetings:
                state += f" · {progress.meetings} meeting{'s' * (progress.meetings > 1)}"
            lines += self._flow(f"  {progress.name}: ", [f"{progress.rounds:,} rounds", state], INDENT)
        return lines


@contextmanager
def following(verbose: bool | None, callback: SweepCallback | None) -> Iterator[SweepCallback]:
    """The callback; without one, a view on standard error or in a notebook if that is wanted or there is one."""
    console = progress_console()
    if callback is not None or not (is_shown(console) if verbose is None else verbose):
        yield callback or SweepCallback()
        return
    with SweepView(console) as view:
        yield view
