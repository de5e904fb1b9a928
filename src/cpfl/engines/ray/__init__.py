"""The engine of a Ray cluster: workers train whole cohorts, the driver keeps sessions, records and checkpoints.

Importing this package does not import Ray. This file has the user's description of a cluster and its checks.
"""

import importlib.util
import os
from dataclasses import dataclass, replace

from cpfl.errors import SettingError

ADDRESSES = "host:port of a running head, auto for the cluster of this machine, or none for a cluster of its own"
MIN_GPU_SHARE = 0.0001  # Ray counts in ten-thousandths of a GPU
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster, and the resources of one worker."""

    address: str = ""  # empty: a cluster on this machine, which ends with the run
    gpu_share: float = 1.0  # the share of a GPU for one worker
    device: str = "auto"  # of workers: auto takes GPUs if the cluster has some
    node_data: str = ""  # a folder of data sets that all nodes can read; empty: Ray sends the driver's data


def resolve_cluster(config: ClusterConfig | None, device: str) -> ClusterConfig:
    """The cluster config with the separate device setting merged in and an absolute data folder."""
    config = config or ClusterConfig(device=device)
    if config.node_data:
        config = replace(config, node_data=os.path.abspath(os.path.expanduser(config.node_data)))
    if device in ("auto", config.device):
        return config
    if config.device != "auto":
        raise SettingError(f"device = {device} and a cluster with device = {config.device}: say one of them")
    return replace(config, device=device)


def check_config(engine: str, config: ClusterConfig) -> None:
    """Every check that does not need the cluster."""
    if engine != "ray":
        if config != ClusterConfig(device=config.device):
            raise SettingError(f"address, gpu_share and node_data go with engine = ray, not with {engine}")
        return
    if importlib.util.find_spec("ray") is None:
        raise SettingError("engine = ray needs Ray, which is not installed: pip install 'cpfl[ray]'")
    if not MIN_GPU_SHARE <= config.gpu_share <= 1:
        allowed = f"at least {MIN_GPU_SHARE:g}, Ray's smallest share, and at most 1"
        raise SettingError(f"gpu_share = {config.gpu_share:g} is not allowed: {allowed}")
    if config.device not in DEVICES:
        allowed = f"{', '.join(DEVICES)}; Ray chooses which of a node's GPUs a worker gets"
        raise SettingError(f"device = {config.device} does not go with engine = ray: {allowed}")
    if config.address.startswith("ray://"):
        raise SettingError(f"address = {config.address} is a Ray client's address: {ADDRESSES}")
    if config.address not in ("", "auto") and not config.address.rpartition(":")[2].isdigit():
        raise SettingError(f"address = {config.address} is not an address: {ADDRESSES}")
