"""cpfl as a process that fails at a chosen moment.

dying.py kill K WORDS…     SIGKILL right before its K-th operation on a file of a run (counted from 1)
dying.py torn K WORDS…     the same before its K-th opening for writing, after it wrote half a line into the file
dying.py copy DIR WORDS…   never dies, but copies the run folder to DIR/K before its K-th operation: what a kill leaves
dying.py limit N WORDS…    no file may grow beyond N bytes
dying.py often S WORDS…    never dies, but writes every S seconds: a fast run too is on disk long before its end
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from cpfl.runs import writer

CHANGES = {"os.rename", "os.truncate", "os.remove", "os.mkdir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class FileHook:
    """Is called right before every operation on the files of one folder."""

    def __init__(self, mode: str, argument: str, folder: Path) -> None:
        self._mode, self._argument, self._folder = mode, argument, folder.absolute()
        self._count = 0
        self._busy = False
        self._sync = os.fsync
        sys.addaudithook(self._hook)
        os.fsync = self._fsync

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(args[0], (str, bytes)) and args[2] & WRITING:
                self._before(Path(os.fsdecode(args[0])), opening=True)
        elif event in CHANGES and not isinstance(args[0], int):
            self._before(Path(os.fsdecode(args[0])), opening=False)

    def _fsync(self, handle: int) -> None:
        self._before(Path(os.readlink(f"/proc/self/fd/{handle}")), opening=False)
        self._sync(handle)

    def _before(self, path: Path, opening: bool) -> None:
        inside = path.absolute().is_relative_to(self._folder)
        if self._busy or not inside or (self._mode == "torn" and not opening):
            return
        self._count += 1
        if self._mode == "copy":
            self._busy = True
            if self._folder.is_dir():
                shutil.copytree(self._folder, Path(self._argument) / f"{self._count:05d}")
            self._busy = False
        elif self._count == int(self._argument):
            self._busy = True
            if self._mode == "torn":
                with path.open("ab") as file:
                    file.write(b'{"cohort":0,"round":1,"partic')
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    mode, argument, *words = sys.argv[1:]
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(argument), int(argument)))
    elif mode == "often":
        writer.PAUSE = float(argument)
    else:
        FileHook(mode, argument, Path(words[words.index("--out") + 1] if "--out" in words else words[1]))
    sys.argv = ["cpfl", *words]
    from cpfl.cli import main as cpfl

    cpfl()


if __name__ == "__main__":
    main()
