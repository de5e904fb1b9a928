"""From the names of an engine and a device to the objects, with the checks that come before any training."""

import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cpfl import models
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.gpu_errors import device_failed, out_of_memory
from cpfl.engines.lanes import LaneEngine, why_not_lanes
from cpfl.engines.ray import ClusterConfig, check_config
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.engines.workers.pool import WorkerPool, can_fork, cores
from cpfl.errors import SettingError, first_line
from cpfl.federation import optimizers
from cpfl.federation.session import Session
from cpfl.models import batch_norm
from cpfl.task.task import Task

NAMES = ("auto", "reference", "workers", "lanes", "ray")
DEVICES = ("cpu", "cuda", "mps", "xpu")
Notify = Callable[[str], None]
ONE_PROCESS = ("reference", "lanes")
NOT_IN_LANES = "this model cannot train in lanes, one client at a time instead: "


def check_engine(name: str, workers: int = 0, cluster: ClusterConfig | None = None) -> None:
    """Refuse an engine that does not exist, or that cannot have so many workers or this cluster."""
    if workers < 0:
        raise SettingError(f"workers = {workers} is not allowed: 1 or more, or 0 for one on each core")
    if name not in NAMES:
        raise SettingError(f"engine = {name!r} is unknown; known: {', '.join(NAMES)}")
    if workers > 1 and name in ONE_PROCESS:
        raise SettingError(f"workers = {workers} has no effect with engine = {name!r}: use the engine workers, or ray")
    check_config(name, cluster or ClusterConfig())


def torch_device(name: str, engine: str = "auto") -> torch.device:
    """The device to compute on in this process; auto takes a GPU if there is one.

    With the engine ray, cuda is the device of its workers: a driver without a GPU does its own work on the CPU.
    """
    if engine == "ray" and name.split(":")[0] == "cuda" and not torch.cuda.is_available():
        name = "cpu"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in DEVICES:
        known = ", ".join(DEVICES)
        raise SettingError(f"device = {name!r} is unknown; known: auto, {known}, or one with a number, cuda:1")
    if name.split(":")[0] == "mps" and not torch.backends.mps.is_available():  # torch's own sentence is a page long
        raise SettingError(f"device = {name!r} cannot be used: this machine or this PyTorch has no Metal GPU")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # graphs are captured on the current GPU
    except (RuntimeError, AssertionError) as error:
        raise SettingError(f"device = {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


def resolve_engine(name: str | Engine, task: Task, device: torch.device, notify: Notify) -> str:
    """The engine that trains where this one is asked for.

    `auto` takes lanes on a CUDA device and workers on a CPU. Other devices, and models that cannot train in
    lanes, take the reference engine.
    """
    if isinstance(name, Engine):
        return name.name
    if name == "auto":
        name = {"cuda": "lanes", "cpu": "workers"}.get(device.type, "reference")
    if name != "lanes":
        return name
    reasons = [why_not_lanes(task.for_cohort(cohorts[0]), device) for cohorts in cohorts_by_model(task)]
    if not all(reasons):
        return "lanes"
    notify(NOT_IN_LANES + reasons[0])
    return "reference"


def cohorts_by_model(task: Task) -> list[list[int]]:
    """The cohorts that train the same model, for each model."""
    groups: dict[int, list[int]] = {}
    for cohort in range(len(task.cohorts)):
        groups.setdefault(id(task.for_cohort(cohort).build), []).append(cohort)
    return list(groups.values())


def create_engine(
    name: str | Engine,
    task: Task,
    device: torch.device,
    notify: Notify,
    workers: int = 0,
    cluster: ClusterConfig | None = None,  # of the engine ray
) -> Engine:
    """The engine of this name, or the given one; it holds one for each model where cohorts train different ones."""
    if isinstance(name, Engine):
        name.prepare(task, device)
        return name
    if name == "ray":
        from cpfl.engines.ray.engine import RayEngine  # only those who ask for it need Ray

        engine = RayEngine(task, cluster or ClusterConfig(), workers, notify)
        if engine.device == "cuda" and device.type != "cuda":
            notify("the driver sees no GPU: cohorts train on GPUs, their evaluation and the student use this CPU")
        return engine
    if task.cohort_models:
        return GroupedEngine(task, lambda own: _local_engine(name, own, device, notify, workers))
    return _local_engine(name, task, device, notify, workers)


class GroupedEngine(Engine):
    """An engine for each model that cohorts train, one after the other."""

    def __init__(self, task: Task, create: Callable[[Task], Engine]) -> None:
        self._engines = [(set(cohorts), create(task.for_cohort(cohorts[0]))) for cohorts in cohorts_by_model(task)]
        self.device = self._engines[0][1].device
        # The summary's name for it: reference only where every model needs that engine.
        self.name = next((engine.name for _, engine in self._engines if engine.name != "reference"), "reference")

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Every session goes to the engine of its model."""
        for cohorts, engine in self._engines:
            engine.train_cohorts([session for session in sessions if session.cohort in cohorts], on_round)


def _local_engine(name: str, task: Task, device: torch.device, notify: Notify, workers: int) -> Engine:
    """An engine of this machine."""
    name = resolve_engine(name, task, device, notify)
    if workers > 1 and name in ONE_PROCESS:
        notify(f"workers = {workers} has no effect here: the engine {name} trains in one process")
    if name == "reference":
        return ReferenceEngine(task, device)
    if name == "workers":
        if not can_fork() and cores() > 1 and workers != 1:
            notify("training on one core: worker processes are forked, which needs Linux and no visible GPU")
        return worker_engine(task, workers)
    check_memory(task, device, in_lanes=True)
    try:
        return lane_engine(task, device=device, notify=notify)
    except Exception as error:
        if out_of_memory(error) or device_failed(error):
            raise
        notify(NOT_IN_LANES + first_line(error))  # the compiler fails in many ways
        return ReferenceEngine(task, device)


def worker_engine(task: Task, workers: int = 0, pool: WorkerPool | None = None) -> WorkerEngine:
    """Workers for a task, or the pool that it shares with other runs."""
    check_memory(task, torch.device("cpu"), in_lanes=False)
    return WorkerEngine(task, workers, pool)


def lane_engine(task: Task | Sequence[Task], *shared: Any, device: torch.device, notify: Notify) -> LaneEngine:
    """Lanes for a task, or for runs that share them; fewer if there is no memory for all."""
    lanes = wanted = LaneEngine.default_lanes(task, device)
    while True:
        try:
            engine = LaneEngine(task, device, lanes, None, *shared) if shared else LaneEngine(task, device, lanes)
        except Exception as error:
            if not out_of_memory(error) or lanes == 1:
                raise
        else:
            if lanes < wanted:
                notify(f"the device is out of memory for {wanted} lanes: continuing with {lanes}")
            return engine
        lanes //= 2
        gc.collect()  # the unfinished engine refers to itself
        if not LaneEngine.living:  # else the lanes of another model need the compiled kernels
            torch.compiler.reset()  # kernels under trial hold the tensors that they were tried with
            gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize()  # queued work may still write into the memory that is freed
            torch.cuda.empty_cache()


def check_memory(task: Task, device: torch.device, in_lanes: bool) -> None:
    """Refuse per-client state that can never fit: engines hold a model's numbers, or some of them, for each client."""
    experiment = task.experiment
    federation, dtype = experiment.federation, task.data.transform.dtype
    kept, what = list(task.start), "a model"
    if optimizers.client_optimizer(federation).has_client_state:
        key, remedy = f'federation.client = "{federation.client}"', "a client optimizer without per-client state"
    elif federation.straggler_policy == "stale" and in_lanes:  # the updates of all clients may wait at once
        key, remedy = 'federation.straggler_policy = "stale"', "another straggler policy"
    elif federation.batch_stats == "local":
        kept, what = batch_norm.names(models.fresh(task.build, experiment.seed, "init", dtype)), "the BatchNorm layers"
        key, remedy = 'federation.batch_stats = "local"', '"average"'
    else:
        return
    numbers = sum(task.start[name].numel() for name in kept)
    needed, available = experiment.clients * numbers * dtype.itemsize, memory(device)
    if needed > available:
        raise SettingError(
            f"{key} needs memory for {what} of each of {experiment.clients:,} clients, {needed / 1e9:,.0f} GB, and "
            f"{device.type} has {available / 1e9:,.0f} GB: use fewer clients, or {remedy}"
        )


def memory(device: torch.device) -> int:
    """The device's memory in bytes, used or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
