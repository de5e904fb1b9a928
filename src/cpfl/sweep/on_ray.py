"""Runs of a sweep on a Ray cluster, from one queue, the largest first.

A run with one slot (a core or a share of a GPU) is one task. A run with several slots has as many workers, which share
its cohorts. Tasks write their run folders, so all nodes must see the sweep's folder. If a node dies, Ray starts the
task again on another one, and the run resumes from its folder.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpfl.engines.ray import cluster
from cpfl.engines.ray._ray_internals import SHOW_GPUS
from cpfl.engines.ray.config import ClusterConfig
from cpfl.errors import ClusterError
from cpfl.settings import Experiment
from cpfl.sweep import slots
from cpfl.sweep.processes import POLL_SECONDS, End, Work, run_or_resume
from cpfl.sweep.progress import RunProgress, SweepCallback

MAX_RETRIES = 3  # by Ray, of a run whose node or process died


class ClusterScheduler:
    """Gives the runs of a sweep to a Ray cluster."""

    def __init__(self, config: ClusterConfig, folder: Path, data: str | None, workers: int) -> None:
        """Connect and check the cluster, before anything is written.

        `workers` is the maximum of all runs together; 0: all that fit.
        """
        self._config, self._own = config, cluster.connect(config)
        self._drivers = 0
        try:
            self._found = cluster.check_cluster(config, 2**31, workers, self._own)
            parent = next(p for p in [folder.absolute(), *folder.absolute().parents] if p.is_dir())
            handle, token = tempfile.mkstemp(dir=parent, prefix=".cpfl-seen-")
            os.close(handle)
            try:
                cluster.check_path(token, f"the folder {parent}, into which the runs of this sweep are to be written")
            finally:
                os.unlink(token)
            self._data = config.node_data or data  # a run's driver is on some node, too
            if data is not None and not config.node_data:
                cluster.check_path(data, f"data = {data}")
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Cores, or shares of GPUs."""
        return self._found.workers

    def close(self) -> None:
        """Stop the cluster if it was started for this sweep."""
        if self._own and ray.is_initialized():
            ray.shutdown()

    def run(self, work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
        """All runs, as many at the same time as there are slots for."""
        runs = {name: experiment for name, (experiment, _) in work.items()}
        sizes = slots.allocate(runs, self.slots)
        queue = slots.order(runs, sizes)
        progress_queue = Queue(actor_options={"num_cpus": 0})
        shared = ray.put(dict(common))  # once for all runs: a user's own arrays may be in it
        free, running = self.slots, dict[Any, str]()
        while queue or running:
            for name in list(queue):
                if sizes[name] <= free:
                    queue.remove(name)
                    free -= sizes[name]
                    running[self._start(*work[name], sizes[name], shared, progress_queue)] = name
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for progress in _drain(progress_queue):
                callback.on_progress(progress)
            for result in ended:
                name = running.pop(result)
                free += sizes[name]
                end(name, _failure(result))
            callback.on_wait()
        progress_queue.shutdown()

    def _start(self, experiment: Experiment, path: Path, size: int, common: Any, progress_queue: Queue) -> Any:
        found, arguments = self._found, dict[str, Any](data=self._data)
        if size > 1:  # the task is the run's driver and needs no slot itself
            arguments |= {"engine": "ray", "workers": size, "cluster": self._config}
            resources = self.driver()
        else:
            # GPUs that are not the task's need not be hidden from it.
            engine, device = ("lanes", "cuda") if found.gpus else ("workers", "cpu")
            arguments |= {"engine": engine, "device": device, "workers": 1, "cluster": None}
            resources = {"num_cpus": 1.0, "num_gpus": found.gpus}
        gpus = resources.get("num_gpus", 0.0)
        remote = task(_run, resources, bool(found.gpus))
        return remote.remote(experiment, path.absolute(), common, arguments, progress_queue, gpus)

    def driver(self) -> dict[str, Any]:
        """Resources of a run's driver: no slot, but a node whose GPUs it can use for the student."""
        if not self._found.gpus:
            return {"num_cpus": 0.0}
        able = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        self._drivers += 1
        resources: dict[str, Any] = {"num_cpus": 0.0, "runtime_env": {"env_vars": SHOW_GPUS}}
        if able:
            node = able[self._drivers % len(able)]
            resources["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        return resources


def task(job: Callable[..., None], resources: Mapping[str, Any], gpus: bool) -> Any:
    """A job that Ray retries. With GPUs each one has a process of its own: a used process would keep the GPU and the
    memory of its last run. Ray needs to know of GPUs when the task is made."""
    return ray.remote(**resources, max_retries=MAX_RETRIES, max_calls=1 if gpus else 0)(job)


def _run(
    experiment: Experiment,
    path: Path,
    common: dict[str, Any],
    arguments: dict[str, Any],
    progress_queue: Queue,
    gpus: float,
) -> None:
    """A run, on some node."""
    if gpus and torch.cuda.is_available():  # else the run says that there is no GPU
        cluster.limit_to_share(gpus)
    progress_queue.put(RunProgress(path.name, 0, 0, experiment.cohorts, 0))
    run_or_resume(experiment, path, progress_queue.put, **{**common, **arguments})


def _failure(result: Any) -> Exception | None:
    try:
        ray.get(result)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        lost = f"the node or process of this run died {MAX_RETRIES + 1} times ({type(error).__name__})"
        return ClusterError(f"{lost}: the same command resumes it")
    return None


def _drain(progress_queue: Queue) -> list[RunProgress]:
    try:
        return list(progress_queue.get_nowait_batch(progress_queue.qsize()))
    except Empty:
        return []
