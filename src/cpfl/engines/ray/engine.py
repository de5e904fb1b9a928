"""The engine of a Ray cluster: its workers train cohorts and label the public set, the driver closes every round.

The result of a round does not depend on the worker that trained it. So a cohort may move between two rounds, and after
a death it continues from the last round that the driver closed.
"""

import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayTaskError

from cpfl.engines.base import Engine, OnRound
from cpfl.engines.gpu_errors import device_failed
from cpfl.engines.ray import ClusterConfig, cluster
from cpfl.engines.ray.messages import Message, Released, SessionState, WorkerFailure
from cpfl.engines.ray.pool import DEATHS, WorkerHandle, WorkerPool, unwrapped
from cpfl.engines.ray.worker import portable
from cpfl.errors import ClusterError
from cpfl.federation import local_training
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.task.task import Task

LISTEN_SECONDS = 1.0
MAX_DEATHS = 3  # in a row with the same cohort, or the same part of the targets, and no progress in between


class RayEngine(Engine):
    """Trains cohorts on the workers of a Ray cluster."""

    name = "ray"

    def __init__(self, task: Task, config: ClusterConfig, workers: int, notify: Callable[[str], None]) -> None:
        """Connect to the cluster, check it, and load the task on its workers; every problem is raised here."""
        self.task, self._notify = task, notify
        self.moved = 0  # cohorts that a free worker has taken over
        packed = portable(task, config.node_data)
        with contextlib.ExitStack() as stack:
            stack.enter_context(cluster.connection(config))
            self._cluster = cluster.check_cluster(config, workers, len(task.cohorts))
            self.pool = WorkerPool(self._cluster, ray.put(packed))
            stack.callback(self.pool.close)
            self.pool.start()
            self._close = weakref.finalize(self, stack.pop_all().close)
        self.device = self._cluster.device
        notify(str(self._cluster))
        for text in {text for worker in self.pool.ready for text in worker.facts["notes"]}:
            notify(text)

    def close(self) -> None:
        """Kill the workers, and end the cluster if it was started for this engine."""
        self._close()

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Do all rounds of all sessions."""
        try:
            CohortScheduler(self, sessions, on_round).run()
        except BaseException:
            self.close()
            raise

    @property
    def width(self) -> int:
        """Pieces that can be done at once."""
        return max(1, len(self.pool.ready))

    def share(self, items: Iterable[Any]) -> list[Any]:
        """Put items into the object store, from which every node fetches each of them once."""
        return [ray.put(item) for item in items]

    def spread(self, job: Callable[..., Any], shared: list[Any], pieces: Sequence[Any]) -> list[Any]:
        """The results of `job(task, device, shared, piece)` on the workers; others repeat the pieces of dead ones."""
        answers: dict[int, Any] = {}
        deaths = Counter[int]()
        lost: dict[WorkerHandle, list[Any]] = {}
        while remaining := [k for k in range(len(pieces)) if k not in answers]:
            workers = self._ready_workers(lost, len(pieces))
            owners = {k: workers[i % len(workers)] for i, k in enumerate(remaining)}
            pending = {k: worker.actor.apply.remote(job, shared, pieces[k]) for k, worker in owners.items()}
            lost = {}
            for k, answer in pending.items():
                while not ray.wait([answer], timeout=LISTEN_SECONDS)[0]:
                    busy = {worker for i, worker in owners.items() if i not in answers}
                    self.report([worker.status(float(worker in busy), 0.0) for worker in self.pool.ready])
                try:
                    answers[k] = ray.get(answer)
                    continue
                except RayTaskError as error:
                    owners[k].why_dead = device_failed(error.cause)
                    if not owners[k].why_dead:
                        raise unwrapped(error) from None
                except DEATHS:
                    pass
                lost.setdefault(owners[k], []).append(pieces[k])
                deaths[k] += 1
                _check_deaths(deaths[k], "the same part of the targets")
        self.report([worker.status(0.0, 0.0) for worker in self.pool.ready])
        return [answers[k] for k in range(len(pieces))]

    def _ready_workers(self, lost: Mapping[WorkerHandle, list[Any]], total: int) -> list[WorkerHandle]:
        """Kill the workers that lost pieces, and wait until their deaths are reported and some worker can take work."""
        for worker in lost:
            ray.kill(worker.actor)
        while True:
            waiting = not self.pool.ready or lost.keys() & set(self.pool.workers)
            for worker in self.pool.receive(LISTEN_SECONDS if waiting else 0.0)[1]:
                repeated = [{"piece": piece} for piece in lost.get(worker, [])]
                self.handle_death(worker, repeated, f"{len(repeated)} of {total} parts of the targets")
            if not waiting and self.pool.ready:
                return self.pool.ready

    def handle_death(self, worker: WorkerHandle, repeated: list[dict[str, Any]], phrase: str) -> None:
        """Report what is repeated elsewhere, for the log and as a phrase, and start a replacement."""
        node, pid = worker.facts.get("node"), worker.facts.get("pid")
        self.on_event("worker died", worker=worker.name, node=node, pid=pid, why=worker.why_dead, run_again=repeated)
        died = f"{worker.name} died; run again elsewhere: {phrase if repeated else 'nothing'}"
        self._notify(died if worker.ready else f"{worker.name} could not start: {worker.why_dead}")
        if given_up := self.pool.replace(worker):
            self.on_event("worker given up", worker=worker.name, why=given_up)
            self._notify(given_up)

    def report(self, workers: list[dict[str, Any]]) -> None:
        """Hand on the status of all workers."""
        self.on_load({"workers": workers, "moved": self.moved, "dashboard": self._cluster.dashboard})


class CohortScheduler:
    """Trains the sessions of one call to `train_cohorts`."""

    def __init__(self, engine: RayEngine, sessions: Sequence[Session], on_round: OnRound) -> None:
        self._engine, self._pool, self._on_round = engine, engine.pool, on_round
        self._active = {session.cohort: session for session in sessions if not session.idle}
        self._samples = {cohort: _samples_per_round(engine.task, cohort) for cohort in self._active}
        self._unassigned = set(self._active)
        self._deaths = Counter[int]()  # of workers with a cohort, since its last closed round
        self._reported = 0.0

    def run(self) -> None:
        """Train until every session is idle."""
        while self._active:
            self._assign()
            received, dead = self._pool.receive(LISTEN_SECONDS)
            for worker, message in received:
                self._handle(worker, message)
            for worker in dead:
                self._handle_death(worker)
            self._steal()
            self._report(LISTEN_SECONDS)
        self._report(0.0)

    def _cost(self, cohort: int) -> float:
        """Expected cost of the remaining rounds: under any stopping rule, a long session is expected to stay long."""
        return self._samples[cohort] * max(1, self._active[cohort].round)

    def _assign(self) -> None:
        """Give unassigned cohorts to free workers, or to all workers if none is free."""
        ready = self._pool.ready
        if not ready:
            return
        free = [worker for worker in ready if not worker.cohorts] or ready
        loads = [sum(map(self._cost, worker.cohorts)) for worker in free]
        shares = pack({cohort: self._cost(cohort) for cohort in self._unassigned}, loads)
        for worker, cohorts in zip(free, shares, strict=True):
            if cohorts:
                worker.cohorts.update(cohorts)
                layout = self._engine.task.layout
                states = [SessionState.from_session(self._active[cohort], layout(cohort)) for cohort in cohorts]
                worker.actor.assign.remote(states)
        self._unassigned.clear()

    def _handle(self, worker: WorkerHandle, message: Message) -> None:
        if isinstance(message, WorkerFailure):
            if not message.gpu_error:
                raise message.error
            worker.why_dead = message.gpu_error
            ray.kill(worker.actor)  # it is found dead a moment later and replaced
            return
        cohort = message.cohort
        if cohort not in worker.cohorts:
            return
        if isinstance(message, Released):
            self._unassigned.add(cohort)
            self._engine.moved += 1
        else:
            session, result = self._active[cohort], message.result(self._engine.task.layout(cohort))
            self._deaths[cohort] = 0
            worker.trained.append((time.monotonic(), sum(one.samples for one in result.results)))
            self._on_round(session, session.close_round(result))
            if not session.idle:
                return
            del self._active[cohort]
        worker.cohorts.discard(cohort)
        worker.releasing.discard(cohort)

    def _handle_death(self, worker: WorkerHandle) -> None:
        """Other workers repeat the open rounds of its cohorts."""
        repeated = {cohort: self._active[cohort].round + 1 for cohort in sorted(worker.cohorts)}
        for cohort, number in repeated.items():
            self._deaths[cohort] += 1
            _check_deaths(self._deaths[cohort], f"cohort {cohort}, which came no further than round {number - 1}")
        self._unassigned.update(repeated)
        phrase = ", ".join(f"round {number} of cohort {cohort}" for cohort, number in repeated.items())
        log = [{"cohort": cohort, "round": number} for cohort, number in repeated.items()]
        self._engine.handle_death(worker, log, phrase)

    def _steal(self) -> None:
        """Move cohorts from the worker with the most work to each free worker that gets nothing otherwise."""
        ready = self._pool.ready
        releases = sum(bool(worker.releasing) for worker in ready)
        free = sum(not worker.cohorts for worker in ready) - releases - len(self._unassigned)
        for _ in range(free):
            costs = [{c: self._cost(c) for c in worker.cohorts if not worker.releasing} for worker in ready]
            if found := cohorts_to_steal(costs):
                worker, cohorts = ready[found[0]], found[1]
                worker.releasing.update(cohorts)
                worker.actor.release.remote(cohorts)

    def _report(self, seconds: float) -> None:
        """The status of all workers, if the last report is older than this."""
        now = time.monotonic()
        if now - self._reported >= seconds:
            self._reported = now
            active = bool(self._active)  # at the end, no worker trains any more
            self._engine.report([w.status(active * w.busy, active * w.throughput()) for w in self._pool.ready])


def _check_deaths(count: int, work: str) -> None:
    if count >= MAX_DEATHS:
        died = f"{MAX_DEATHS} workers died one after the other with {work}, for want of memory perhaps"
        raise ClusterError(f"{died}: resume the run with fewer workers")


def pack(costs: Mapping[int, float], loads: Sequence[float]) -> list[list[int]]:
    """Cohorts for each worker beside its current load: the costliest first, each to the worker with the least."""
    found: list[list[int]] = [[] for _ in loads]
    totals = list(loads)
    for cohort in sorted(costs, key=lambda cohort: (-costs[cohort], cohort)):
        worker = min(range(len(totals)), key=lambda worker: (totals[worker], len(found[worker]), worker))
        found[worker].append(cohort)
        totals[worker] += costs[cohort]
    return found


def cohorts_to_steal(costs: Sequence[Mapping[int, float]]) -> tuple[int, list[int]] | None:
    """The worker with the most work, and about half of its cohorts for a free worker; None if no worker has two."""
    several = [worker for worker, own in enumerate(costs) if len(own) > 1]
    if not several:
        return None
    worker = max(several, key=lambda worker: (sum(costs[worker].values()), -worker))
    return worker, pack(costs[worker], [0.0, 0.0])[1]  # the costliest stays


def _samples_per_round(task: Task, cohort: int) -> float:
    settings, clients = task.experiment.federation, task.cohorts[cohort]
    steps = local_training.all_steps(settings, task.data.clients.training_sizes[np.asarray(clients)])
    return float(steps.mean()) * settings.batch_size * participants_per_round(settings, len(clients))
