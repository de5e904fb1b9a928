"""Everything that relies on parts of Flower that are not its public API: those of the one version that we require.

The stock SuperNode polls for work every three seconds. The patched one polls four times a second for a minute after
each message, because the next message is then near.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

POLL_VARIABLE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
QUIET = {  # no telemetry, no installations
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
NODE = "cpfl-supernode"
NODE_PROGRAMS = {  # that a node starts, and their entry points
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp:flwr_clientapp",
    "flower-superexec": "flwr.supercore.cli.flower_superexec:flower_superexec",
}
PROGRAMS = {  # of a fleet on one machine
    **NODE_PROGRAMS,
    NODE: "cpfl.deploy._flower_internals:supernode",
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
    "flwr": "flwr.cli.app:app",
}
LATE_IMPORTS = (  # of programs of a fleet, which import them after their start
    "flwr.superlink.main",
    "flwr.supernode.main",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
ACTIVE_SECONDS = 60.0  # after a message
POLL_SECONDS, ANSWER_SECONDS = 0.25, 0.05  # between polls for a message, and for the answer to one


def _fast_polling() -> Any:
    """The time module for the SuperNode's main loop, with shorter sleeps."""
    last_message = time.monotonic()

    def sleep(seconds: float) -> None:
        """The stock node sleeps half a second while it waits for an answer, three seconds while it waits for work."""
        nonlocal last_message
        if seconds < 1:
            last_message = time.monotonic()
            seconds = ANSWER_SECONDS
        elif time.monotonic() - last_message < ACTIVE_SECONDS:
            seconds = POLL_SECONDS
        time.sleep(seconds)

    return SimpleNamespace(**{**vars(time), "sleep": sleep})


def supernode() -> None:
    """`flower-supernode` with the same options and faster polling during a run."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    os.environ.setdefault(POLL_VARIABLE, str(POLL_SECONDS))
    start_client_internal.time = _fast_polling()  # type: ignore[attr-defined]
    sys.argv[0] = "flower-supernode"
    flower_supernode()


def register(address: str, ca: Path, public_key: Path) -> None:
    """What `flwr supernode register` does."""
    with _control(address, ca) as client:
        client.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(public_key)))


def run_info(address: str, ca: Path, run: int) -> Any:
    """What `flwr ls` knows of a run: status.status, status.sub_status, bytes_sent, bytes_recv."""
    with _control(address, ca) as client:
        return client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]


def _control(address: str, ca: Path) -> ControlHttpClient:
    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )


def log_text(line: str) -> str:
    """A line of Flower's log without its coloured prefix."""
    return line.rpartition("\x1b[0m:")[2].strip()
