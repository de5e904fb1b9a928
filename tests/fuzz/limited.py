"""cpfl as a process with limits on memory and CPU time: a runaway ends in a MemoryError or a signal.

However fast or busy the machine is, these limits mean the same.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path


def main() -> None:
    """Words are MEMORY CPU_SECONDS, then those of the program; for `Forked`."""
    memory, seconds, *words = sys.argv[1:]
    limit(int(memory), int(seconds))
    sys.argv = ["cpfl", *words]
    from cpfl.cli import main as cpfl

    cpfl()


def run(words: Sequence[object], memory: int, seconds: int) -> tuple[int, str]:
    """The exit code and standard error of the program in a fork of this process, which has imported everything.

    A signal is a negative exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        output.touch()
        child = os.fork()
        if not child:
            os._exit(_in_child([*map(str, words)], str(output), memory, seconds))
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), output.read_text(errors="replace")


def limit(memory: int, seconds: int) -> None:
    """So many bytes more than this process has now, and so many CPU seconds."""
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, -1))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _in_child(words: Sequence[str], output: str, memory: int, seconds: int) -> int:
    from cpfl.cli import main as cpfl

    try:
        for number, name in ((1, os.devnull), (2, output)):
            handle = os.open(name, os.O_WRONLY | os.O_APPEND)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["cpfl", *words]
        limit(memory, seconds)
        try:
            cpfl()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
