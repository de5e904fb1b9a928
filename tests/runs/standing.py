"""Processes that are looked at while they stand still: what is seen then is what a kill at that moment leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from forked import Forked

STEP = 0.02  # seconds that it goes on between two looks: few, and still most of the time


def halt(pid: int) -> list[int]:
    """Stop a process and all that it has started; who stands still now, those that it started first."""
    _send(signal.SIGSTOP, [pid])
    _wait_until_still(pid)
    started = [child for children in Path(f"/proc/{pid}/task").glob("*/children") for child in _words(children)]
    return [one for child in started for one in halt(int(child))] + [pid]


def go_on(pids: list[int]) -> None:
    """Whoever is still there goes on."""
    _send(signal.SIGCONT, pids)


def killed_when(process: subprocess.Popen[str] | Forked, reached: Callable[[], bool], step: float = STEP) -> bool:
    """Let it go on step by step and kill it as soon as the moment has come; False: it ended before."""
    while process.poll() is None:
        still = halt(process.pid)
        come = process.poll() is None and reached()
        if come:
            process.kill()
        go_on(still)  # what it started ends by itself, if it can
        if come:
            return True
        time.sleep(step)
    return False


def _send(kind: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, kind)


def _wait_until_still(pid: int) -> None:
    """A signal has been sent; every thread follows it a moment later."""
    if not Path("/proc/self/task").exists():  # another system: a moment is all that can be given
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
