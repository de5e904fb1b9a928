"""A sweep on a Ray cluster: whole runs and cohorts of large ones from one queue, the largest first.

Most runs get one slot, a core or a share of a GPU, and are a task there; one that gets several has as many workers, and
its cohorts are spread over them. Tasks write their run folders themselves, so that all nodes must see the sweep's
folder; one whose node dies is begun again elsewhere by Ray, and goes on from what is on disk.
"""

from __future__ import annotations

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
from cpfl.engines.ray.place import Place
from cpfl.engines.ray.sharing import settle_in
from cpfl.errors import ClusterError
from cpfl.experiment import Experiment
from cpfl.sweep import widths
from cpfl.sweep.workers import POLL_SECONDS, End, Pulse, Work, run_or_resume

AGAIN = 3  # times that Ray begins a run anew whose node or process died
SIGHT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # else Ray hides all GPUs from a task that was given none


class Hall:
    """A cluster that is fit for a sweep."""

    def __init__(self, place: Place, where: Path, data: str | None, workers: int) -> None:
        """Reach it and look at it: what is wrong is told before anything is written. So many workers at most, of all
        runs together; 0: all that fit."""
        self._place, self._ours = place, cluster.connect(place)
        self._drivers = 0
        try:
            self._found = cluster.look(place, cohorts=2**31, workers=workers, ours=self._ours)
            parent = next(p for p in [where.absolute(), *where.absolute().parents] if p.is_dir())
            handle, token = tempfile.mkstemp(dir=parent, prefix=".cpfl-seen-")
            os.close(handle)
            try:
                cluster.seen(token, f"the folder {parent}, into which the runs of this sweep are to be written")
            finally:
                os.unlink(token)
            self._data = place.node_data or data  # whoever drives a run does so on some node
            if data is not None and not place.node_data:
                cluster.seen(data, f"--data {data}")
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Cores, or shares of GPUs."""
        return self._found.workers

    def close(self) -> None:
        """Let go of the cluster, if it was begun for this sweep."""
        if self._ours and ray.is_initialized():
            ray.shutdown()

    def work(
        self,
        work: Work,
        common: Mapping[str, Any],
        pulse: Callable[[Pulse], None],
        wait: Callable[[], None],
        end: End,
    ) -> None:
        """All runs, as many at a time as there is room for."""
        runs = {name: experiment for name, (experiment, _) in work.items()}
        sizes = widths.slots(runs, self.slots)
        queue = widths.order(runs, sizes)
        pulses = Queue(actor_options={"num_cpus": 0})
        shared = ray.put(dict(common))  # once for all runs: a user's own arrays may be in it
        free, running = self.slots, dict[Any, str]()
        while queue or running:
            for name in [name for name in queue if sizes[name] <= free]:
                if sizes[name] <= free:
                    queue.remove(name)
                    free -= sizes[name]
                    running[self._begin(*work[name], sizes[name], shared, pulses)] = name
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for beat in _waiting(pulses):
                pulse(beat)
            for answer in ended:
                name = running.pop(answer)
                free += sizes[name]
                end(name, _trouble(answer))
            wait()
        pulses.shutdown()

    def _begin(self, experiment: Experiment, path: Path, size: int, common: Any, pulses: Queue) -> Any:
        found, words = self._found, dict[str, Any](data=self._data)
        if size > 1:  # the task is the run's driver and needs no slot itself
            words |= {"engine": "ray", "workers": size, "cluster": self._place}
            share = self.driver()
        else:
            # GPUs that are not the task's need not be hidden from it.
            engine, device = ("lanes", "cuda") if found.gpus else ("workers", "cpu")
            words |= {"engine": engine, "device": device, "workers": 1, "cluster": None}
            share = {"num_cpus": found.cpus, "num_gpus": found.gpus}
        begun = task(_run, share, bool(found.gpus))
        gpus = share.get("num_gpus", 0.0)
        return begun.remote(experiment, path.absolute(), common, words, pulses, gpus)

    def driver(self) -> dict[str, Any]:
        """What a run's driver gets: no slot, but sight of the GPUs of a node that has some, for the student."""
        if not self._found.gpus:
            return {"num_cpus": 0.0}
        able = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        self._drivers += 1
        share: dict[str, Any] = {"num_cpus": 0.0, "runtime_env": {"env_vars": SIGHT}}
        if able:
            where = able[self._drivers % len(able)]
            share["scheduling_strategy"] = NodeAffinitySchedulingStrategy(where, soft=True)
        return share


def task(job: Callable[..., None], share: Mapping[str, Any], gpus: bool) -> Any:
    """A job that Ray begins again. With GPUs every one has a process of its own: one that was used before would keep to
    the card of its last run and hold memory there. Ray sees to that only if it is told of GPUs as the task is made."""
    return ray.remote(**share, max_retries=AGAIN, max_calls=1 if gpus else 0)(job)


def _run(
    experiment: Experiment, path: Path, common: dict[str, Any], words: dict[str, Any], pulses: Queue, gpus: float
) -> None:
    """A run, on some node."""
    words = {**common, **words}
    if gpus and torch.cuda.is_available():  # else it is told that it has none
        settle_in(gpus)
    tell = pulses.put
    tell(Pulse(path.name, 0, 0, experiment.cohorts, 0))
    run_or_resume(experiment, path, tell, **words)


def _trouble(answer: Any) -> Exception | None:
    try:
        ray.get(answer)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        lost = f"the node or process of this run died {AGAIN + 1} times ({type(error).__name__})"
        return ClusterError(f"{lost}: the same command goes on with it")
    return None


def _waiting(pulses: Queue) -> list[Pulse]:
    try:
        return list(pulses.get_nowait_batch(pulses.qsize()))
    except Empty:
        return []
