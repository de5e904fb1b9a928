"""The cluster: reached, looked at, and found fit for an experiment before anything is written.

What can be wrong is told in one sentence each: no cluster at the address, too few CPUs or GPUs, another cpfl or torch
on a node, a folder that a node does not see.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpfl.engines.ray import fitness
from cpfl.engines.ray.place import ADDRESSES, Place, quiet
from cpfl.errors import ClusterError

REACH_SECONDS = 5.0
LOOK_SECONDS = 120.0  # for a node to answer, the start of a Python process and its imports included


@dataclass(frozen=True)
class Cluster:
    """A cluster that is fit for the work: how many workers, and what each is given."""

    workers: int
    cpus: float
    gpus: float
    nodes: int
    dashboard: str  # its address; empty: it does not run
    ours: bool  # begun for this run, and ended with it

    @property
    def device(self) -> str:
        """Of every worker."""
        return "cuda" if self.gpus else "cpu"


def connect(place: Place) -> bool:
    """Reach the cluster; whether it is one that was begun just now."""
    quiet()
    if ray.is_initialized():
        _check_address(place.address)
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not place.address:
        with _signals(), _loopback():
            ray.init(address="local", include_dashboard=False, **options)
        return True
    if place.address != "auto":
        host, _, port = place.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(f"there is no Ray cluster at --address {place.address}: {error}") from None
    try:
        with _signals():
            ray.init(address=place.address, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        # Another version of Ray or Python on the head is told here too.
        said = " ".join(str(error).split())[:300]
        raise ClusterError(f"no Ray cluster can be used at --address {place.address} ({ADDRESSES}): {said}") from None
    return True


def _check_address(address: str) -> None:
    """Whoever has reached a cluster already uses that one; it must be the one that is asked for."""
    if address in ("", "auto") or ray.get_runtime_context().get_task_id() is not None:  # a task is where it is
        return
    there = ray.get_runtime_context().gcs_address
    (host, _, port), (own, _, own_port) = address.rpartition(":"), there.rpartition(":")
    if port != own_port or not _machines(host) & _machines(own):
        raise ClusterError(
            f"this process uses the Ray cluster at {there} already, not --address {address}: say that one"
        )


def _machines(host: str) -> set[str]:
    """The addresses of a name; this machine's own, by whichever it is called."""
    with contextlib.suppress(OSError):
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
        here = ray.util.get_node_ip_address()
        return found | {here} if any(ipaddress.ip_address(one).is_loopback for one in found) else found
    return {host}


def look(place: Place, cohorts: int, workers: int, ours: bool) -> Cluster:
    """How many workers there will be, after every node was found fit."""
    _check_code()
    if place.node_data:
        remedy = "or leave it out and the data travel through Ray"
        seen(place.node_data, f"--node-data {place.node_data}", remedy)
    there = ray.cluster_resources()  # after the nodes were asked: one that was lost a moment ago is known to be by now
    gpus = there.get("GPU", 0.0)
    where = f"the Ray cluster at {place.address}" if place.address else "this machine"
    if place.device == "cuda" and not gpus:
        raise ClusterError(f"--device cuda asks for GPUs, and {where} has none that Ray knows of")
    on_gpus = bool(gpus) and place.device != "cpu"
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = slots([node["Resources"] for node in nodes], place.gpu_share if on_gpus else 0.0)
    each = f"{place.gpu_share:g} GPU and a CPU of one node" if on_gpus else "a CPU"
    wanted = workers or fitting
    if fitting < 1:
        raise ClusterError(f"{where} has no room for a worker, which needs {each}: it has {_told(there)}")
    if wanted > fitting:
        raise ClusterError(
            f"{where} has {_told(there)}: {wanted} workers, each with {each}, do not fit there; "
            f"allowed: --workers 1 to {fitting}"
        )
    dashboard = ray._private.worker.get_dashboard_url()
    link = f"http://{dashboard}" if dashboard else ""
    return Cluster(min(wanted, cohorts), 1.0, place.gpu_share if on_gpus else 0.0, len(nodes), link, ours)


def slots(nodes: Sequence[Mapping[str, float]], gpu_share: float) -> int:
    """How many workers fit: each needs a CPU, and a share of one GPU of the same node unless that is 0."""
    most = [int(node.get("CPU", 0)) for node in nodes]
    if gpu_share:
        a_gpu = int(1 / gpu_share + 1e-9)  # 1 / 0.1 is less than 10 for some shares, and a worker is never split
        most = [min(cpus, int(node.get("GPU", 0)) * a_gpu) for cpus, node in zip(most, nodes, strict=True)]
    return sum(most)


def seen(path: str, name: str, remedy: str = "or a shared file system") -> None:
    """Every node sees a file or folder."""
    for node, found in _asked(path):
        if not found["seen"]:
            raise ClusterError(
                f"node {node} of the Ray cluster does not see {name}: give a folder that every node sees, {remedy}"
            )


def _check_code() -> None:
    """Every node has the driver's cpfl and what it stands on."""
    here = fitness.fitness("")
    for node, found in _asked(""):
        other = fitness.unlike(found, here)
        if other:
            raise ClusterError(f"node {node} of the Ray cluster {other}")


def _asked(path: str) -> Iterator[tuple[str, fitness.Fitness]]:
    """What every node that could hold a worker has; one that is lost meanwhile is passed over."""
    cloudpickle.register_pickle_by_value(fitness)  # a node with another cpfl, or none, must be able to answer
    ask = ray.remote(fitness.fitness)
    able = [n for n in ray.nodes() if n["Alive"] and (n["Resources"].get("CPU") or n["Resources"].get("GPU"))]
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in able]
    answers = [ask.options(num_cpus=0, scheduling_strategy=where).remote(path) for where in there]
    for node, answer in zip(able, answers, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            yield name, ray.get(answer, timeout=LOOK_SECONDS)
        except RayError as error:
            if not any(now["Alive"] for now in ray.nodes() if now["NodeID"] == node["NodeID"]):
                continue
            raise ClusterError(f"node {name} of the Ray cluster does not answer: {type(error).__name__}") from None


def _told(resources: dict[str, float]) -> str:
    counts = {key: resources[key] for key in ("CPU", "GPU") if key in resources}
    found = [f"{count:g} {key}{'' if count == 1 else 's'}" for key, count in counts.items()]
    return " and ".join(found) or "neither CPUs nor GPUs"


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """A cluster of this machine alone listens on loopback alone, as Ray has it on systems without clusters."""
    key, constants = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    chosen = os.environ.get(key)
    os.environ[key] = "0"  # for the processes of the cluster
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if chosen is None:
            del os.environ[key]
        else:
            os.environ[key] = chosen


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Ray would answer SIGTERM in its own way from now on."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)
