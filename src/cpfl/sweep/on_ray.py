"""Runs of a sweep on a Ray cluster, from one queue, those with the most slots first.

A slot is a core or a share of a GPU; a run keeps its slots until it ends. A run with one slot is one task. A run with
several slots has as many workers, which share its cohorts. Tasks write their run folders, so all nodes must see the
sweep's folder. If a node dies, Ray starts the task again on another one, and the run resumes from its folder.

Twelve equal runs on eight slots, one each, leave half of the slots idle half of the time. If four of the runs start
first, on two slots each, none is idle.
"""

import heapq
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
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
from cpfl.sweep.callback import SweepCallback
from cpfl.sweep.one_run import End, Work, run_or_resume
from cpfl.sweep.processes import POLL_SECONDS

MAX_RETRIES = 3  # by Ray, of a run whose node or process died
MAX_TIME = 0.95  # of the time with one slot each: several processes for a run have a cost of their own
MAX_WAVES = 4  # of runs with several slots: with many more runs than slots, the end matters little

Runs = Mapping[Any, Experiment]  # by name or path


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

    @property
    def device(self) -> str:
        """The kind of device that runs train on."""
        return self._found.device

    def run(self, work: Work, common: Mapping[str, Any], callback: SweepCallback, end: End) -> None:
        """All runs, as many at the same time as there are slots for."""
        free = self._found.workers
        sizes = allocate(work, free)
        waiting = order(work, sizes)
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


def allocate(runs: Runs, total: int) -> dict[Any, int]:
    """Slots in proportion to the work, from one to the number of cohorts; more for some runs if that saves time.

    Those are the most costly runs: as many as are one too many, all, or as fill the cluster a few times.
    """
    costs = {name: cost(experiment) for name, experiment in runs.items()}
    whole = sum(costs.values())
    shares = {name: int(total * costs[name] / whole + 1e-9) for name in runs}

    def at_least(size: int, names: Iterable[Any]) -> dict[Any, int]:
        return {name: max(1, min(runs[name].cohorts, total, max(size, shares[name]))) for name in names}

    plain = at_least(1, runs)
    divisible = sorted((name for name in runs if runs[name].cohorts > 1), key=lambda name: -costs[name])
    candidates = [plain]
    for size in (2**power for power in range(1, total.bit_length())):
        counts = {len(runs) % total, len(divisible), *(total // size * wave for wave in range(1, MAX_WAVES + 1))}
        candidates += [plain | at_least(size, divisible[:count]) for count in sorted(counts)]
    best = min(candidates, key=lambda slots: duration(runs, slots, total))
    return best if duration(runs, best, total) < MAX_TIME * duration(runs, plain, total) else plain


def order(runs: Runs, slots: Mapping[Any, int]) -> list[Any]:
    """Most slots first, then the largest cost; equal ones as in the sweep."""
    return sorted(runs, key=lambda name: (-slots[name], -cost(runs[name])))


def cost(experiment: Experiment) -> float:
    """An estimate of a run's work from its settings: the maximum of rounds times the work of a round."""
    federation = experiment.federation
    rounds = experiment.stopping.rounds if experiment.stopping.rule == "rounds" else experiment.max_rounds
    part = federation.participants / experiment.clients if federation.participants else federation.participation
    each = federation.local_steps * federation.batch_size * experiment.clients if federation.local_steps else 1e4
    return float(rounds * part * each * max(1, federation.local_epochs))


def duration(runs: Runs, slots: Mapping[Any, int], total: int) -> float:
    """The time of all runs if each takes its estimated cost; a cohort is never split."""
    waiting: dict[int, deque[float]] = {}
    for name in order(runs, slots):
        n = runs[name].cohorts
        waiting.setdefault(slots[name], deque()).append(cost(runs[name]) * -(-n // slots[name]) / n)
    now, free = 0.0, total
    running: list[tuple[float, int]] = []
    while running or any(waiting.values()):
        for size, times in waiting.items():  # most slots first
            while times and size <= free:
                heapq.heappush(running, (now + times.popleft(), size))
                free -= size
        now, size = heapq.heappop(running)
        free += size
    return now
