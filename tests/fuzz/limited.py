"""cpfl as a process with limits: words are MEMORY CPU_SECONDS, then those of the program. Python's own, no stub."""

from __future__ import annotations

import resource
import sys


def main() -> None:
    """A runaway ends in a MemoryError or a signal, however fast or busy the machine is."""
    memory, seconds, *words = sys.argv[1:]
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + int(memory), -1))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    sys.argv = ["cpfl", *words]
    from cpfl.cli import main as cpfl

    cpfl()
