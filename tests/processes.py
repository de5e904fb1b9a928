"""The program as a process of its own that need not import torch: it is forked from one that has imported everything.

tests/test_imports.py, tests/test_terminal.py and one test in tests/test_docs.py start new interpreters.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

import forked
import pytest

ROOT = Path(__file__).parents[1]
# Where the process that others are forked from finds the modules of tests.
PATH = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "runs", os.environ.get("PYTHONPATH", ""))))
forked.CONTEXT.set_forkserver_preload(["cpfl.cli", "cpfl.dashboard.server", "tests.warm", __name__])

CPFL, PYTHON = f"{__name__}:cpfl", f"{__name__}:python"
Answer = TypeVar("Answer")


class Program(forked.Forked):
    """A process, with its output so far; the output is in files, so that nobody has to read it."""

    def __init__(
        self, words: Sequence[object], folder: Path, environment: Mapping[str, str], program: str = CPFL
    ) -> None:
        """`program`: module:function, called in this folder with these words after the name in sys.argv."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", PATH)
            forkserver.ensure_running()
        with contextlib.chdir(folder):
            super().__init__(program, [program, *map(str, words)], environment)

    @property
    def out(self) -> str:
        return (self._output / "out").read_text()

    @property
    def err(self) -> str:
        return (self._output / "err").read_text()

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        wait([self._process.sentinel])
        code = self.returncode
        assert code is not None
        return code

    def until(self, what: Callable[[], Answer]) -> Answer:
        """The first true answer, for which there is time as long as the process lives."""
        while not (found := what()):
            assert self.poll() is None, f"it has ended: {self.out}{self.err}"
            time.sleep(0.05)
        return found


def cpfl() -> None:
    """`python -m cpfl`."""
    import cpfl.cli

    _take_path()
    cpfl.cli.main()


def python() -> None:
    """`python -c`."""
    _take_path()
    sys.path.insert(0, "")
    code, sys.argv = sys.argv[1], ["-c", *sys.argv[2:]]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _take_path() -> None:
    """What a new interpreter does with PYTHONPATH."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
