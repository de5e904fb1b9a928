"""Runs of a sweep on a Ray cluster, from one queue, the largest first.

A run with one slot (a core or a share of a GPU) is one task. A run with several slots has as many workers, which share
its cohorts. Tasks write their run folders, so all nodes must see the sweep's folder. If a node dies, Ray starts the
task again on another one, and the run resumes from its folder.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpfl.engines.ray import ClusterConfig, cluster
from cpfl.engines.ray._ray_internals import SHOW_GPUS
from cpfl.errors import ClusterError
from cpfl.settings import Experiment
from cpfl.sweep import slots
from cpfl.sweep.progress import POLL_SECONDS, End, SweepCallback, Work, run_or_resume

MAX_RETRIES = 3  # by Ray, of a run whose node or process died


class ClusterScheduler:
    """Gives the runs of a sweep to the Ray cluster that this process is connected to."""

    def __init__(self, config: ClusterConfig, folder: Path, data: str | None, workers: int) -> None:
        """Check the cluster, before anything is written. `workers` is the maximum of all runs; 0: all that fit."""
        self._config, self._found, self._drivers = config, cluster.check_cluster(config, workers), 0
        parent = next(p for p in [folder.absolute(), *folder.absolute().parents] if p.is_dir())
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".cpfl-seen-") as file:
            name = f"the folder {parent}, into which the runs of this sweep are to be written"
            cluster.check_path(file.name, name)
        if data is not None and not config.node_data:
            cluster.check_path(data, f"data = {data}")
        self._data = config.node_data or data  # a run's driver is on some node, too

    def run(self, work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
        """All runs, as many at the same time as there are slots for."""
        free = self._found.workers
        sizes = slots.allocate(work, free)
        waiting = slots.order(work, sizes)
        progress_queue = Queue(actor_options={"num_cpus": 0})
        shared = ray.put(dict(common))  # once for all runs: a user's own arrays may be in it
        running: dict[Any, Path] = {}
        while waiting or running:
            for path in list(waiting):
                if sizes[path] <= free:
                    waiting.remove(path)
                    free -= sizes[path]
                    running[self._start(work[path], path, sizes[path], shared, progress_queue)] = path
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for progress in progress_queue.get_nowait_batch(progress_queue.qsize()):
                callback.on_progress(progress)
            for result in ended:
                path = running.pop(result)
                free += sizes[path]
                end(path, _failure(result))
            callback.on_wait()
        progress_queue.shutdown()

    def _start(self, experiment: Experiment, path: Path, size: int, common: Any, progress_queue: Queue) -> Any:
        gpus, share = self._found.gpus, 0.0
        if size > 1:  # the task is the run's driver and needs no slot itself
            own: dict[str, Any] = {"engine": "ray", "workers": size, "cluster": self._config}
            resources = self.driver()
        else:
            # GPUs that are not the task's need not be hidden from it.
            engine, device = ("lanes", "cuda") if gpus else ("workers", "cpu")
            own = {"engine": engine, "device": device, "workers": 1, "cluster": None}
            resources, share = {"num_cpus": 1.0, "num_gpus": gpus}, gpus
        remote = task(_run, resources, bool(gpus)).remote
        return remote(experiment, path.absolute(), progress_queue, share, common, data=self._data, **own)

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


def _run(experiment: Experiment, path: Path, queue: Queue, gpu_share: float, common: Any, **own: Any) -> None:
    """A run, on some node."""
    if gpu_share and torch.cuda.is_available():  # else the run says that there is no GPU
        cluster.limit_to_share(gpu_share)
    run_or_resume(experiment, path, queue.put, **{**common, **own})


def _failure(result: Any) -> Exception | None:
    try:
        ray.get(result)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        lost = f"the node or process of this run died {MAX_RETRIES + 1} times ({type(error).__name__})"
        return ClusterError(f"{lost}: the same command resumes it")
    return None
