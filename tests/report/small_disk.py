"""cpfl where no file can be larger than 20 kB: every later byte meets a disk without space."""

import resource
import signal

from tests import processes

LARGEST = 20_000  # bytes


def cpfl() -> None:
    """The program."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, before[1]))
    try:
        processes.cpfl()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)  # what measures this process writes at its end
