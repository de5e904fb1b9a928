"""The engine of a Ray cluster: its workers train cohorts and label the public set, the driver closes every round."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from cpfl.engines.base import Engine, OnRound
from cpfl.engines.gpu_errors import device_failed
from cpfl.engines.ray import cluster
from cpfl.engines.ray.config import ClusterConfig
from cpfl.engines.ray.pool import DEATHS, WorkerHandle, WorkerPool, unwrapped
from cpfl.engines.ray.scheduler import LISTEN_SECONDS, MAX_DEATHS, CohortScheduler
from cpfl.engines.ray.worker import pack
from cpfl.errors import ClusterError
from cpfl.federation.session import Session
from cpfl.task.task import Task


class RayEngine(Engine):
    """Trains cohorts on the workers of a Ray cluster."""

    name = "ray"

    def __init__(self, task: Task, config: ClusterConfig, workers: int, notify: Callable[[str], None]) -> None:
        """Connect to the cluster, check it, and load the task on its workers; every problem is raised here."""
        self._task, self._notify = task, notify
        packed = pack(task, config.node_data)
        connected = cluster.connect(config)
        try:
            self._cluster = cluster.check_cluster(config, len(task.cohorts), workers, connected)
            self._pool = WorkerPool(self._cluster, ray.put(packed))
            self._pool.start()
        except BaseException:
            if connected:
                ray.shutdown()
            raise
        self.device = self._cluster.device
        self._close = weakref.finalize(self, self._pool.close, connected)
        notify(str(self._cluster))
        for text in {text for worker in self._pool.ready for text in worker.facts["notes"]}:
            notify(text)

    def close(self) -> None:
        """Kill the workers, and end the cluster if it was started for this engine."""
        self._close()

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        try:
            CohortScheduler(self._task, self._pool, sessions, on_round, self._handle_death, self._report).run()
        except BaseException:
            self.close()
            raise

    @property
    def width(self) -> int:
        """Pieces that can be done at once."""
        return max(1, len(self._pool.ready))

    def share(self, items: Iterable[Any]) -> list[Any]:
        """Put items into the object store, from which every node fetches each of them once."""
        return [ray.put(item) for item in items]

    def spread(self, job: Callable[..., Any], shared: list[Any], pieces: Sequence[Any]) -> list[Any]:
        """The results of `job(task, device, shared, piece)` on the workers; others repeat the pieces of dead ones."""
        answers: dict[int, Any] = {}
        deaths = Counter[int]()
        while remaining := [k for k in range(len(pieces)) if k not in answers]:
            workers = self._wait_for_workers()
            owners = {k: workers[i % len(workers)] for i, k in enumerate(remaining)}
            pending = {k: worker.actor.apply.remote(job, shared, pieces[k]) for k, worker in owners.items()}
            lost: dict[WorkerHandle, list[Any]] = {}
            for k, answer in pending.items():
                while not ray.wait([answer], timeout=LISTEN_SECONDS)[0]:
                    self._report_labelling({worker for i, worker in owners.items() if i not in answers})
                try:
                    answers[k] = ray.get(answer)
                    continue
                except RayTaskError as error:
                    owners[k].gpu_error = device_failed(error.cause)
                    if not owners[k].gpu_error:
                        raise unwrapped(error) from None
                except DEATHS:
                    pass
                lost.setdefault(owners[k], []).append(pieces[k])
                deaths[k] += 1
            if max(deaths.values(), default=0) >= MAX_DEATHS:
                raise ClusterError(
                    f"{MAX_DEATHS} workers died one after the other with the same part of the targets, for want of "
                    "memory perhaps: resume the run with fewer workers"
                )
            for dead in lost:
                for worker, reason in self._pool.wait_for_death(dead):
                    repeated = [{"piece": piece} for piece in lost.get(worker, [])]
                    phrase = f"{len(repeated)} of {len(pieces)} parts of the targets"
                    self._handle_death(worker, reason, repeated, phrase)
        self._report_labelling(set())
        return [answers[k] for k in range(len(pieces))]

    def _wait_for_workers(self) -> list[WorkerHandle]:
        """The workers that can take work; waits if there is none."""
        while True:
            _, dead = self._pool.receive(0.0 if self._pool.ready else LISTEN_SECONDS)
            for worker, reason in dead:
                self._handle_death(worker, reason, [], "nothing")
            if self._pool.ready:
                return self._pool.ready

    def _handle_death(self, worker: WorkerHandle, reason: str, repeated: list[dict[str, Any]], phrase: str) -> None:
        """Report what is repeated elsewhere, and start a replacement."""
        facts = worker.facts
        name = facts.get("worker", f"worker {worker.number}")
        node, pid = facts.get("node"), facts.get("pid")
        self.on_event("worker died", worker=name, node=node, pid=pid, why=reason, run_again=repeated)
        died = f"{name} died; run again elsewhere: {phrase}"
        self._notify(died if worker.ready else f"{name} could not start: {reason}")
        given_up = self._pool.replace(worker, reason)
        if given_up:
            self.on_event("worker given up", worker=name, why=given_up)
            self._notify(given_up)

    def _report_labelling(self, busy: set[WorkerHandle]) -> None:
        self._report([worker.status(float(worker in busy), 0.0) for worker in self._pool.ready])

    def _report(self, workers: list[dict[str, Any]]) -> None:
        self.on_load({"workers": workers, "moved": self._pool.moved, "dashboard": self._cluster.dashboard})
