"""Processes that are inspected while they are suspended: what is seen then is what a kill at that moment leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from forked import Forked

STEP = 0.02  # seconds that a process runs between two inspections: few, and still most of the time


def suspend(pid: int) -> list[int]:
    """Suspend a process and its children; the ids of all suspended processes, children first."""
    _send(signal.SIGSTOP, [pid])
    _wait_until_suspended(pid)
    started = [child for children in Path(f"/proc/{pid}/task").glob("*/children") for child in _words(children)]
    return [one for child in started for one in suspend(int(child))] + [pid]


def wake(pids: list[int]) -> None:
    """Let suspended processes continue, if they still exist."""
    _send(signal.SIGCONT, pids)


def killed_when(process: subprocess.Popen[str] | Forked, reached: Callable[[], bool], step: float = STEP) -> bool:
    """Run a process step by step and kill it as soon as `reached` is true; False: it ended before."""
    while process.poll() is None:
        suspended = suspend(process.pid)
        now = process.poll() is None and reached()
        if now:
            process.kill()
        wake(suspended)  # children end by themselves, if they can
        if now:
            return True
        time.sleep(step)
    return False


def _send(kind: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, kind)


def _wait_until_suspended(pid: int) -> None:
    """A signal was sent; threads follow it a moment later."""
    if not Path("/proc/self/task").exists():  # no Linux: threads cannot be inspected
        time.sleep(0.02)
    while any(_state(thread) not in "TtZX" for thread in Path(f"/proc/{pid}/task").glob("[0-9]*")):
        time.sleep(0.0005)


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
