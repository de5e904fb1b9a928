"""What follows a sweep while its runs are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cpfl.inference.run import Run
    from cpfl.sweeps.grid import SweepGrid


class RunProgress(NamedTuple):
    """The progress of one run of a sweep."""

    name: str
    rounds: int
    stopped: int
    cohorts: int
    epoch: int  # of the distillation; 0: not started
    meetings: int = 0  # of its cohorts


class SweepCallback:
    """What a sweep calls as it proceeds. Override the methods you need."""

    def on_start(self, grid: SweepGrid, finished: Sequence[str]) -> None:
        """The sweep starts or resumes; these of its runs are finished already."""

    def on_progress(self, progress: RunProgress) -> None:
        """A run has progressed; called at most a few times a second."""

    def on_wait(self) -> None:
        """Called regularly while runs are under way."""

    def on_run(self, run: Run) -> None:
        """A run is finished, now or before."""

    def on_failure(self, path: Path, error: Exception) -> None:
        """A run failed; the others continue."""

    def on_trial(self, name: str, share: float, facts: Sequence[str]) -> None:
        """A trial of a tune has ended, or a test; the share of its trials, or tests, that have, and facts in words."""

    def on_message(self, text: str) -> None:
        """A line for the user."""
