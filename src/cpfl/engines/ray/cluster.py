"""Connecting to a Ray cluster and checking it before anything is written: one sentence for every problem."""

import contextlib
import ipaddress
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpfl.engines.ray import ADDRESSES, ClusterConfig, _ray_internals, environment
from cpfl.engines.workers.pool import cores
from cpfl.errors import ClusterError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 600.0  # for a node to answer, with the start of a Python process and its imports
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


@dataclass(frozen=True)
class Cluster:
    """A cluster that passed the checks: the number of workers and the resources of each."""

    workers: int
    gpus: float  # share of a GPU for each worker; 0: it trains on its CPU
    nodes: int
    dashboard: str  # address of Ray's dashboard; empty: it does not run

    @property
    def device(self) -> str:
        """Device of every worker."""
        return "cuda" if self.gpus else "cpu"

    def __str__(self) -> str:
        each = f"{self.gpus:g} GPU" if self.gpus else "a core"
        link = f"; Ray's dashboard: {self.dashboard}" if self.dashboard else ""
        return f"Ray: {_counted(self.workers, 'worker')} on {_counted(self.nodes, 'node')}, {each} each{link}"


@contextlib.contextmanager
def connection(config: ClusterConfig) -> Iterator[None]:
    """Connect to the cluster, or start one on this machine, and leave it at the end.

    A process that is connected already stays so; that cluster must be the one in the config.
    """
    connected = ray.is_initialized()
    (_check_address if connected else _connect)(config.address)
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()


def _connect(address: str) -> None:
    if address not in ("", "auto"):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(f"there is no Ray cluster at address = {address}: {error}") from None
    try:
        _ray_internals.init(address)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        if not address:
            raise
        # Another version of Ray or Python on the head is reported here too.
        reason = f"no Ray cluster can be used at address = {address} ({ADDRESSES}): {one_line(error)}"
        raise ClusterError(reason) from None


def _check_address(address: str) -> None:
    context = ray.get_runtime_context()
    if address in ("", "auto") or context.get_task_id() is not None:  # a task cannot choose
        return
    (host, _, port), (current_host, _, current_port) = address.rpartition(":"), context.gcs_address.rpartition(":")
    if port != current_port or not _ip_addresses(host) & _ip_addresses(current_host):
        in_use = f"this process uses the Ray cluster at {context.gcs_address} already"
        raise ClusterError(f"{in_use}, not address = {address}: say that one")


def _ip_addresses(host: str) -> set[str]:
    """The IP addresses of a host; a loopback address also stands for this machine's address in the cluster."""
    with contextlib.suppress(OSError):
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
        loopback = any(ipaddress.ip_address(one).is_loopback for one in found)
        return found | {ray.util.get_node_ip_address()} if loopback else found
    return {host}


def check_cluster(config: ClusterConfig, workers: int, cohorts: float = math.inf) -> Cluster:
    """Check every node, then decide the number of workers: as many as asked for or as fit, at most one per cohort."""
    driver = environment.inspect()
    for node, found in _inspect_nodes(""):
        if other := environment.difference(found, driver):
            raise ClusterError(f"node {node} of the Ray cluster {other}")
    if config.node_data:
        remedy = "or leave it out and the data travel through Ray"
        check_path(config.node_data, f"node_data = {config.node_data}", remedy)
    total = ray.cluster_resources()  # after the nodes were inspected, when Ray knows which ones are lost
    where = f"the Ray cluster at {config.address}" if config.address else "this machine"
    if config.device == "cuda" and not total.get("GPU"):
        raise ClusterError(f"device = cuda asks for GPUs, and {where} has none that Ray knows of")
    share = config.gpu_share if total.get("GPU") and config.device != "cpu" else 0.0
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = slots([node["Resources"] for node in nodes], share)
    each = f"{share:g} GPU and a CPU of one node" if share else "a CPU"
    counts = [_counted(total[key], key) for key in ("CPU", "GPU") if key in total]
    resources = " and ".join(counts) or "neither CPUs nor GPUs"
    if fitting < 1:
        raise ClusterError(f"{where} has no slot for a worker, which needs {each}: it has {resources}")
    if workers > fitting:
        allowed = f"allowed: workers = 1 to {fitting}"
        raise ClusterError(f"{where} has {resources}: {workers} workers, each with {each}, do not fit there; {allowed}")
    return Cluster(int(min(workers or fitting, cohorts)), share, len(nodes), _ray_internals.dashboard_url())


def slots(nodes: Sequence[Mapping[str, float]], gpu_share: float) -> int:
    """How many workers fit: each needs a CPU, and a share of one GPU of the same node unless that is 0."""
    per_node = [int(node.get("CPU", 0)) for node in nodes]
    if gpu_share:
        per_gpu = int(1 / gpu_share + 1e-9)  # 1 / 0.1 is less than 10 for some shares; no worker is split
        per_node = [min(cpus, int(node.get("GPU", 0)) * per_gpu) for cpus, node in zip(per_node, nodes, strict=True)]
    return sum(per_node)


def limit_to_share(gpu_share: float) -> None:
    """Keep this process to its share of the GPU's memory and of its node's cores; call before CUDA and the compiler."""
    if gpu_share < 1:
        torch.cuda.set_per_process_memory_fraction(gpu_share)
    if COMPILE_THREADS not in os.environ:  # the compiler reads it when it is imported
        own = ray.get_runtime_context().get_node_id()
        node = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == own)
        os.environ[COMPILE_THREADS] = str(compile_threads(node, gpu_share))


def compile_threads(node: Mapping[str, float], gpu_share: float) -> int:
    """A process's share of its node's cores while all processes compile at once."""
    return max(1, cores() // max(1, slots([node], gpu_share)))


def check_path(path: str, name: str, remedy: str = "or a shared file system") -> None:
    """Every node can read a file or folder."""
    for node, found in _inspect_nodes(path):
        if not found["path_exists"]:
            raise ClusterError(
                f"node {node} of the Ray cluster does not see {name}: give a folder that every node sees, {remedy}"
            )


def _inspect_nodes(path: str) -> Iterator[tuple[str, environment.Environment]]:
    """The environment of every node that could hold a worker; nodes that are lost meanwhile are skipped."""
    cloudpickle.register_pickle_by_value(environment)
    inspect = ray.remote(environment.inspect)
    nodes = [n for n in ray.nodes() if n["Alive"] and (n["Resources"].get("CPU") or n["Resources"].get("GPU"))]
    strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    answers = [inspect.options(num_cpus=0, scheduling_strategy=one).remote(path) for one in strategies]
    for node, answer in zip(nodes, answers, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        try:
            yield name, ray.get(answer, timeout=ANSWER_SECONDS)
        except RayError as error:
            if not any(now["Alive"] for now in ray.nodes() if now["NodeID"] == node["NodeID"]):
                continue
            raise ClusterError(f"node {name} of the Ray cluster does not answer: {type(error).__name__}") from None


def one_line(error: Exception) -> str:
    """The beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _counted(count: float, name: str) -> str:
    return f"{count:g} {name}{'' if count == 1 else 's'}"
