"""log.jsonl in a sweep's folder: when it started, which runs began, which failed and why, and when it ended.

The file is only shown, by the dashboard: resuming a sweep does not read it, and a full disk does not end a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cpfl.errors import CpflError, failure
from cpfl.runs import records
from cpfl.sweeps.callback import RunProgress, SweepCallback

if TYPE_CHECKING:
    from cpfl.inference.run import Run
    from cpfl.sweeps.grid import SweepGrid

FILE = "log.jsonl"


class SweepLog(SweepCallback):
    """Passes everything on to another callback, and writes what others need to know of the sweep."""

    def __init__(self, folder: Path, callback: SweepCallback) -> None:
        self._path, self._callback = folder / FILE, callback
        self._begun: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._write("ended" if kind is None else "interrupted")

    def on_start(self, grid: SweepGrid, finished: Sequence[str]) -> None:
        with suppress(CpflError, OSError):
            records.repair(self._path)
        self._write("started", runs=list(grid.runs), finished=list(finished))
        self._callback.on_start(grid, finished)

    def on_progress(self, progress: RunProgress) -> None:
        if progress.name not in self._begun:
            self._begun.add(progress.name)
            self._write("begun", run=progress.name)
        self._callback.on_progress(progress)

    def on_wait(self) -> None:
        self._callback.on_wait()

    def on_run(self, run: Run) -> None:
        self._callback.on_run(run)

    def on_failure(self, path: Path, error: Exception) -> None:
        self._write("failed", run=path.name, reason=failure(error))
        self._callback.on_failure(path, error)

    def on_message(self, text: str) -> None:
        self._callback.on_message(text)

    def _write(self, event: str, **facts: Any) -> None:
        with suppress(CpflError, OSError):
            records.append(self._path, {"event": event, "time": round(time.time(), 3), **facts})
