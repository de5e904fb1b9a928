"""A SuperNode that answers sooner: `flower-supernode` as it is, but warm, and awake while a run goes on.

The stock node looks for work every three seconds. Shortly after a message the next one is near, so this one looks four
times a second for a while, and every three seconds when nothing has come for longer. Both rest on how flwr 1.41.0 is
made; under another version the stock node runs unchanged.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import metadata
from typing import Any

from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from cpfl.deploy import warm

VERSION = "1.41.0"
QUIET = {  # nothing is sent to anybody, nothing is installed
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
AWAKE = 60.0  # seconds after the last message in which the next one is near
OFTEN, WAITING = 0.25, 0.05  # seconds between looks for a message, and for the answer to one


class _Pace:
    """Stands in for the time module where the SuperNode sleeps between looks."""

    def __init__(self) -> None:
        self._busy = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Half a second is its wait for an answer, three seconds its wait for work."""
        if seconds < 1:
            self._busy = time.monotonic()
            seconds = WAITING
        elif time.monotonic() - self._busy < AWAKE:
            seconds = OFTEN
        time.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main() -> None:
    """flower-supernode with the same options, and a warm process of its own; it calls nobody but its SuperLink."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if as_known() and hasattr(os, "fork"):
        place = warm.start(os.environ.get("CPFL_PRELOAD", "").split())
        os.environ["PATH"] = f"{place}{os.pathsep}{os.environ.get('PATH', '')}"
    supernode()


def supernode() -> None:
    """flower-supernode with the same options, awake while a run goes on."""
    if as_known():
        os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(OFTEN))
        start_client_internal.time = _Pace()  # type: ignore[attr-defined, assignment]
    sys.argv[0] = "flower-supernode"
    flower_supernode()


def as_known() -> bool:
    """Whether flwr is the version that this was made for."""
    return metadata.version("flwr") == VERSION


if __name__ == "__main__":
    main()
