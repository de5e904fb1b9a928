"""Runs of a sweep on a Ray cluster.

A slot is a share of a GPU, or the cores of a node. In a slot one task makes runs side by side, as `cpfl sweep` does on
one machine: in the same lanes, or with one pool of workers. A run that is given several slots has a driver of its own,
a task without a slot, and workers that share its cohorts.

Tasks write their run folders, so all nodes must see the sweep's folder. If a node or process dies, another one resumes
the runs from their folders.
"""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpfl.engines.ray import ClusterConfig, _ray_internals, cluster
from cpfl.engines.ray._ray_internals import SHOW_GPUS
from cpfl.errors import ClusterError
from cpfl.settings import Experiment
from cpfl.sweeps.callback import RunProgress, SweepCallback
from cpfl.sweeps.local import Group, groups, make_runs, tell_groups
from cpfl.sweeps.one_run import End, Work, run_or_resume, sendable
from cpfl.sweeps.processes import POLL_SECONDS
from cpfl.sweeps.run_queue import RunQueue
from cpfl.sweeps.slots import allocate, distribute, order

MAX_DEATHS = 3  # of the processes that make a run; then it is made once more, with no other run beside it
DIED = f"the node or process of this run died {MAX_DEATHS + 1} times"


@dataclass(frozen=True)
class Slot:
    """Where one task works."""

    cores: int  # of its node; 1 beside a GPU
    node: str = ""  # by Ray's name; empty: any


@dataclass(frozen=True)
class Job:
    """A task that needs slots: a spread run, or the runs of a queue in one slot."""

    slots: int
    start: Callable[[], Any]
    ended: Callable[[Exception | None, bool], bool]
    """Called with its error, and whether its process died; whether it is to be started again."""


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
        slots = self._slots()
        free, cores = len(slots), max(slot.cores for slot in slots)
        sizes = allocate(work, free, cores)
        spread = order({path: one for path, one in work.items() if sizes[path] > 1}, sizes)
        shared = {path.absolute(): one for path, one in work.items() if sizes[path] == 1}
        if cores > 1:
            slots = slots[: max(1, free - sum(sizes[path] for path in spread))]
        tasks = Tasks(self, slots, shared, common, callback)
        together = tasks.jobs()
        least = min(slot.cores for slot in slots)
        apart = [self._spread(work[path], path, sizes[path], sizes[path] * least, tasks, end) for path in spread]
        # A node that is to be a slot must be free; else runs with many slots come first.
        waiting = together + apart if cores > 1 else apart + together
        running: dict[Any, Job] = {}
        paths = {path.absolute(): path for path in work}
        while waiting or running:
            for job in [*waiting]:
                if job.slots <= free:
                    waiting.remove(job)
                    free -= job.slots
                    running[job.start()] = job
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for kind, *facts in ray.get(tasks.queue.events.remote()):
                if kind == "end":
                    end(paths[facts[0]], facts[1])
                else:
                    getattr(callback, kind)(*facts)
            for result in ended:
                job = running.pop(result)
                if job.ended(*_failure(result)):
                    running[job.start()] = job
                else:
                    free += job.slots
            for path, error in tasks.given_up():
                end(paths[path], error)
            waiting += tasks.more()
            callback.on_wait()
        ray.kill(tasks.queue)

    def _slots(self) -> list[Slot]:
        """All slots, on a CPU the largest first: the cores of each node that are free now."""
        if self._found.gpus:
            return [Slot(1)] * self._found.workers
        left, slots = self._found.workers, []
        unused = _ray_internals.free_cpus()
        nodes = {node: max(1, min(count, int(unused.get(node, 0)))) for node, count in node_cores().items()}
        for node, count in sorted(nodes.items(), key=lambda one: -one[1]):
            if left > 0:
                slots.append(Slot(min(count, left), node))
                left -= slots[-1].cores
        return slots

    def _spread(self, experiment: Experiment, path: Path, size: int, workers: int, tasks: "Tasks", end: End) -> Job:
        """A run with several slots."""
        own = {"engine": "ray", "workers": min(workers, experiment.cohorts), "cluster": self._config}

        def start() -> Any:
            remote = task(_run, self.driver(), bool(self._found.gpus), MAX_DEATHS).remote
            return remote(experiment, path.absolute(), tasks.queue, tasks.common, data=self._data, **own)

        def ended(error: Exception | None, died: bool) -> bool:
            end(path, ClusterError(f"{DIED} ({type(error).__name__}): the same command resumes it") if died else error)
            return False

        return Job(size, start, ended)

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

    def make_together(self, slot: Slot) -> tuple[Any, dict[str, Any]]:
        """A task for the runs of a slot, and the arguments of `cpfl.run` that it has there."""
        resources: dict[str, Any] = {"num_cpus": float(slot.cores), "num_gpus": self._found.gpus}
        if not self._found.gpus:
            alive = node_cores()
            node = slot.node if slot.node in alive else max(alive, key=lambda one: alive[one], default="")
            resources["num_cpus"] = float(min(slot.cores, alive.get(node, 1)))
            if node:
                resources["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        engine, device = ("lanes", "cuda") if self._found.gpus else ("workers", "cpu")
        workers = int(resources["num_cpus"])
        own = {"engine": engine, "device": device, "workers": workers, "cluster": ClusterConfig(device=device)}
        return task(_make_runs, resources, bool(self._found.gpus), 0), {**own, "data": self._data}

    @property
    def gpu_share(self) -> float:
        """Of a GPU, for a slot."""
        return self._found.gpus


class Tasks:
    """The tasks of slots, their queue of runs, and what becomes of runs whose processes die."""

    def __init__(
        self,
        scheduler: ClusterScheduler,
        slots: Sequence[Slot],
        work: Mapping[Path, Experiment],
        common: Mapping[str, Any],
        callback: SweepCallback,
    ) -> None:
        self._scheduler, self._work = scheduler, work
        self.common = ray.put(dict(common))  # once for all runs: a user's own arrays may be in it
        # In lanes a sum is rounded as its neighbours have it: there the same slot has the same runs, always.
        on_gpu = bool(scheduler.gpu_share)
        queues = distribute(work, [slot.cores for slot in slots]) if work else []
        self._slots = dict(enumerate(slots))
        self._first = [number for number, queue in enumerate(queues) if queue]
        self._queues = queues if on_gpu else [list(work)] * len(queues)  # the runs that a slot may make
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.queue = ray.remote(RunQueue).options(num_cpus=0, scheduling_strategy=here).remote(queues, not on_gpu)
        self._deaths = Counter[Path]()
        self._given_up: list[tuple[Path, Exception]] = []
        self._more: list[Job] = []
        parts = groups(work, self._own(0)) if work else []
        tell_groups(parts, self._own(0), callback)

    def jobs(self) -> list[Job]:
        """A task for each slot that has runs."""
        return [self._job(number) for number in self._first]

    def more(self) -> list[Job]:
        """Tasks for runs that are to be made alone from now on."""
        found, self._more = self._more, []
        return found

    def given_up(self) -> list[tuple[Path, Exception]]:
        """Runs that no task makes any more, and why, since the last call."""
        found, self._given_up = self._given_up, []
        return found

    def _own(self, number: int) -> dict[str, Any]:
        return self._scheduler.make_together(self._slots[number])[1]

    def _job(self, number: int) -> Job:
        return Job(1, partial(self._start, number), partial(self._ended, number))

    def _start(self, number: int) -> Any:
        made, own = self._scheduler.make_together(self._slots[number])
        work = [(path, self._work[path]) for path in self._queues[number]]
        return made.remote(number, work, self.queue, self._scheduler.gpu_share, self.common, **own)

    def _ended(self, number: int, error: Exception | None, died: bool) -> bool:
        """A task has ended; whether it is to be started again."""
        if error is None:
            return False
        if not died:
            self._given_up += [(path, error) for path in ray.get(self.queue.drop.remote(number))]
            return False
        again = []
        for path in ray.get(self.queue.lost.remote(number)):
            self._deaths[path] += 1
            if self._deaths[path] > MAX_DEATHS:
                reason = f"{DIED} ({type(error).__name__}): the same command resumes it"
                self._given_up.append((path, ClusterError(reason)))
            elif self._deaths[path] == MAX_DEATHS:  # the run itself may be what kills its process
                alone = ray.get(self.queue.add.remote([path]))
                self._slots[alone], self._queues = self._slots[number], [*self._queues, [path]]
                self._more.append(self._job(alone))
            else:
                again.append(path)
        return bool(ray.get(self.queue.put_back.remote(number, again)))


def node_cores() -> dict[str, int]:
    """The cores of all nodes that have some."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: int(node["Resources"]["CPU"]) for node in nodes if node["Resources"].get("CPU", 0) >= 1}


def task(job: Callable[..., None], resources: Mapping[str, Any], gpus: bool, retries: int = 0) -> Any:
    """A job, which Ray retries so many times. With GPUs each one has a process of its own: a used process would keep
    the GPU and the memory of its last run. Ray needs to know of GPUs when the task is made."""
    return ray.remote(**resources, max_retries=retries, max_calls=1 if gpus else 0)(job)


def _failure(result: Any) -> tuple[Exception | None, bool]:
    """A task's error, and whether its process died."""
    try:
        ray.get(result)
    except RayTaskError as error:
        return (error.cause if isinstance(error.cause, Exception) else error), False
    except RayError as error:
        return error, True
    return None, False


# On some node.


def _run(experiment: Experiment, path: Path, queue: Any, common: Any, **own: Any) -> None:
    """The driver of a run with several slots."""
    run_or_resume(experiment, path, partial(_tell, queue, -1, "on_progress"), **{**common, **own})


def _make_runs(number: int, work: Group, queue: Any, gpu_share: float, common: Any, **own: Any) -> None:
    """The runs of a slot."""
    if not gpu_share:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # workers are not forked beside a GPU
    elif torch.cuda.is_available():  # else the runs say that there is no GPU
        cluster.limit_to_share(gpu_share)
    common = {**common, **own}

    class Sender(SweepCallback):
        def on_progress(self, progress: RunProgress) -> None:
            _tell(queue, number, "on_progress", progress)

        def on_message(self, text: str) -> None:
            _tell(queue, number, "on_message", text)

    for group in groups(dict(work), common):
        experiments = dict(group)

        def take(experiments: Mapping[Path, Experiment] = experiments) -> tuple[Path, Experiment] | None:
            path = ray.get(queue.take.remote(number, [*experiments]))
            return None if path is None else (path, experiments[path])

        def end(path: Path, error: Exception | None) -> None:
            _tell(queue, number, "end", path, None if error is None else sendable(error))

        make_runs(group, take, common, Sender(), end)


def _tell(queue: Any, number: int, *event: Any) -> None:
    with contextlib.suppress(RayError) if event[0] != "end" else contextlib.nullcontext():
        ray.get(queue.report.remote(number, event))
