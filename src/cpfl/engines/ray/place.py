"""Where and on what a Ray engine works, as a user says it; Ray itself is not needed to say it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace

from cpfl.errors import SettingError

ADDRESSES = "host:port of a running head, auto for the cluster of this machine, or none for a cluster of its own"
SMALLEST = 0.0001  # of a GPU: Ray counts in ten-thousandths
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Place:
    """A cluster, and what of it a worker gets."""

    address: str = ""  # empty: a cluster on this machine, which ends with the run
    gpu_share: float = 1.0  # of a GPU, for one worker
    device: str = "auto"  # of workers: auto takes GPUs where the cluster has some
    node_data: str = ""  # a folder of data sets that all nodes see; empty: the driver's data travel through Ray


def settled(place: Place | None, device: str) -> Place:
    """What was said of the place, and of the device beside it; a folder is one of all nodes, wherever they begin."""
    place = place or Place(device=device)
    if place.node_data:
        place = replace(place, node_data=os.path.abspath(place.node_data))
    if device in ("auto", place.device):
        return place
    if place.device != "auto":
        raise SettingError(f"device = {device} and a cluster with device = {place.device}: say one of them")
    return replace(place, device=device)


def check(engine: str, place: Place) -> None:
    """What can be told without looking at any cluster."""
    if engine != "ray":
        if place != Place(device=place.device):
            raise SettingError(f"--address, --gpu-share and --node-data go with --engine ray, not with {engine}")
        return
    if importlib.util.find_spec("ray") is None:
        raise SettingError("--engine ray needs Ray, which is not installed: pip install 'cpfl[ray]'")
    if not SMALLEST <= place.gpu_share <= 1:
        raise SettingError(
            f"--gpu-share {place.gpu_share:g} is not allowed: at least {SMALLEST:g}, Ray's smallest part, and at most 1"
        )
    if place.device not in DEVICES:
        raise SettingError(
            f"--device {place.device} does not go with --engine ray: {', '.join(DEVICES)}; which of a node's GPUs a "
            "worker gets is Ray's to say"
        )
    if place.address.startswith("ray://"):
        raise SettingError(f"--address {place.address} is a Ray client's address: {ADDRESSES}")
    if place.address not in ("", "auto") and not place.address.rpartition(":")[2].isdigit():
        raise SettingError(f"--address {place.address} is not an address: {ADDRESSES}")


def quiet() -> None:
    """Ray reports to nobody and says nothing that a user of cpfl did not ask for, unless they chose otherwise."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's new default; unset, it warns
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
