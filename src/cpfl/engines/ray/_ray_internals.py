"""Everything that relies on parts of Ray that are not its public API. Checked against Ray 2.55.1."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray

SHOW_GPUS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # otherwise Ray hides all GPUs from a task without a GPU share
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", **SHOW_GPUS}  # unless the user's environment says more
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: the processes of a cluster listen on the loopback address only
NODE_DIED = "its node has died"  # part of Ray's message about an actor that was lost with its node


def init(address: str) -> None:
    """`ray.init` that leaves the handler of SIGTERM as it is; without an address, a cluster on loopback only."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **options)
        else:
            with _loopback_only():
                ray.init(address="local", include_dashboard=False, **options)
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def dashboard_url() -> str:
    """The address of Ray's dashboard; empty if it does not run."""
    address = ray._private.worker.get_dashboard_url()
    return f"http://{address}" if address else ""


def free_cpus() -> dict[str, float]:
    """The CPUs of each node that nobody uses at the moment, by its name."""
    found = ray._private.state.available_resources_per_node()
    return {node: resources.get("CPU", 0.0) for node, resources in found.items()}


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    constants, variable = ray._private.ray_constants, os.environ.get(LOOPBACK)
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    os.environ[LOOPBACK] = "0"  # read by the processes of the cluster
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if variable is None:
            del os.environ[LOOPBACK]
        else:
            os.environ[LOOPBACK] = variable
