"""cpfl as a process of its own with everything imported: it is forked from a process that only imports.

A new interpreter takes seconds to import torch. Tests that start dozens of processes would spend their time on that.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import torch

CONTEXT = multiprocessing.get_context("forkserver")
# Commands import what they need; these need everything.
PRELOADED = ["cpfl.api", "cpfl.cli", "cpfl.sweeps.runner", __name__]
CONTEXT.set_forkserver_preload(PRELOADED)
# An exit code can be read once, and starting a process reads those of all that have ended: one thread at a time.
READING = threading.Lock()


class Forked:
    """What tests use of subprocess.Popen: pid, returncode, poll, kill, communicate."""

    def __init__(self, program: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """`program`: module:function, called with these words as sys.argv."""
        self._output = Path(tempfile.mkdtemp(prefix="cpfl-forked-"))
        for name in ("out", "err"):  # a process may be killed before it opens them
            (self._output / name).touch()
        facts = (program, list(words), dict(environment), str(Path.cwd()), str(self._output))
        self._process = CONTEXT.Process(target=_begin, args=facts)
        with READING:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        with READING:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> tuple[str, str]:
        """Standard output and standard error, once it has ended."""
        wait([self._process.sentinel])
        out, err = ((self._output / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self._output)
        return out, err


def _begin(program: str, words: list[str], environment: dict[str, str], folder: str, output: str) -> None:
    """In the new process: set what a shell would set, then call the program."""
    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(f"{output}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    os.fsync = lambda handle: None  # nobody cuts the power
    sys.path[:0] = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.chdir(folder)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    sys.argv = words
    module, _, function = program.partition(":")
    getattr(importlib.import_module(module), function)()
