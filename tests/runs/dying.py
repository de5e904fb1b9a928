"""cpfl as a process that fails at a chosen moment.

dying.py kill K WORDS…        SIGKILL right before its K-th operation on a file of a run (counted from 1)
dying.py torn K WORDS…        the same before its K-th opening for writing, after it wrote half a line into the file
dying.py at PART:K WORDS…     SIGKILL right before its K-th operation on a file with PART in its path
dying.py limit N WORDS…       no file may grow beyond N bytes
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cpfl.runs import writer

CHANGES = {"os.rename", "os.truncate", "os.remove", "os.mkdir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
Before = Callable[[Path, bool], None]


class FileHook:
    """Calls `before` right before every operation on the files of one folder: their path, and whether they are opened.

    Python never forgets an audit hook: one that is no longer `active` does nothing.
    """

    def __init__(self, folder: Path, before: Before) -> None:
        self._folder, self._call, self._sync = folder.absolute(), before, os.fsync
        self.active, self._thread, self._one_at_a_time = True, threading.local(), threading.Lock()
        sys.addaudithook(self._hook)
        os.fsync = self._fsync

    def end(self) -> None:
        """Watch no longer."""
        self.active, os.fsync = False, self._sync

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            if isinstance(args[0], (str, bytes)) and args[2] & WRITING:
                self._before(Path(os.fsdecode(args[0])), opening=True)
        elif event in CHANGES and not isinstance(args[0], int):
            self._before(Path(os.fsdecode(args[0])), opening=False)

    def _fsync(self, handle: int) -> None:
        self._before(Path(os.readlink(f"/proc/self/fd/{handle}")), opening=False)
        self._sync(handle)

    def _before(self, path: Path, opening: bool) -> None:
        if getattr(self._thread, "busy", False) or not path.absolute().is_relative_to(self._folder):
            return
        with self._one_at_a_time:
            self._thread.busy = True  # what it does is no operation of the run
            self._call(path, opening)
            self._thread.busy = False


@contextlib.contextmanager
def copied_states(folder: Path, copies: Path) -> Iterator[None]:
    """Copy a folder to copies/K before the K-th operation on its files meanwhile: what a kill there leaves."""
    count = 0

    def copy(path: Path, opening: bool) -> None:
        nonlocal count
        count += 1
        while folder.is_dir():
            try:
                shutil.copytree(folder, copies / f"{count:05d}")
                break
            except shutil.Error:  # another thread's operation came between
                shutil.rmtree(copies / f"{count:05d}")

    hook = FileHook(folder, copy)
    try:
        yield
    finally:
        hook.end()


def kill(mode: str, argument: str) -> Before:
    """Kills this process at the operation that the argument says."""
    part, _, number = argument.rpartition(":")
    left = int(number)

    def before(path: Path, opening: bool) -> None:
        nonlocal left
        left -= part in str(path) and (opening or mode != "torn")
        if left == 0:
            if mode == "torn":
                with path.open("ab") as file:
                    file.write(b'{"cohort":0,"round":1,"partic')
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def main() -> None:
    mode, argument, *words = sys.argv[1:]
    writer.PAUSE = 0.02  # a fast run, too, is written several times
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(argument), before[1]))
    else:
        FileHook(Path(words[words.index("--out") + 1] if "--out" in words else words[1]), kill(mode, argument))
    sys.argv = ["cpfl", *words]
    from cpfl.cli import main as cpfl

    try:
        cpfl()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)  # what measures this process writes at its end


if __name__ == "__main__":
    main()
