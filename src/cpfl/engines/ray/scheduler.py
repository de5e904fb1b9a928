"""Which worker trains which cohorts: assignment by cost, moves to free workers, repeats after deaths.

The result of a round does not depend on the worker that trained it. So a cohort may move between two rounds, and after
a death it continues from the last round that the driver closed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpfl.engines.base import OnRound
from cpfl.engines.ray.messages import Message, Released, RoundDone, SessionState, WorkerFailure
from cpfl.engines.ray.pool import WorkerHandle, WorkerPool
from cpfl.errors import ClusterError
from cpfl.federation import local_training
from cpfl.federation.selection.base import participants_per_round
from cpfl.federation.session import Session
from cpfl.task.task import Task

LISTEN_SECONDS = 1.0
MAX_DEATHS = 3  # in a row with the same cohort, or the same part of the targets, and no progress in between
OnDeath = Callable[[WorkerHandle, str, list[dict[str, Any]], str], None]
"""(worker, reason, what is repeated for the log, the same as a phrase)"""


class CohortScheduler:
    """Trains the sessions of one call to `train_cohorts`."""

    def __init__(
        self,
        task: Task,
        pool: WorkerPool,
        sessions: Sequence[Session],
        on_round: OnRound,
        on_death: OnDeath,
        on_status: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._pool, self._on_round, self._on_death, self._on_status = pool, on_round, on_death, on_status
        self._active = {session.cohort: session for session in sessions if not session.idle}
        self._samples = {cohort: _samples_per_round(task, cohort) for cohort in self._active}
        self._unassigned = set(self._active)
        self._deaths = dict.fromkeys(self._active, 0)
        self._reported = 0.0

    def run(self) -> None:
        """Train until every session is idle."""
        while self._active:
            self._assign()
            received, dead = self._pool.receive(LISTEN_SECONDS)
            for worker, messages in received:
                for message in messages:
                    self._handle(worker, message)
            for worker, reason in dead:
                self._handle_death(worker, reason)
            self._steal()
            self._report(LISTEN_SECONDS)
        self._report(0.0)

    def _cost(self, cohort: int) -> float:
        """Expected cost of the remaining rounds: under any stopping rule, a long session is expected to stay long."""
        return self._samples[cohort] * max(1, self._active[cohort].round)

    def _assign(self) -> None:
        """Give unassigned cohorts to free workers, or to all workers if none is free."""
        ready = self._pool.ready
        if not ready or not self._unassigned:
            return
        free = [worker for worker in ready if not worker.cohorts] or ready
        loads = [sum(map(self._cost, worker.cohorts)) for worker in free]
        shares = pack({cohort: self._cost(cohort) for cohort in self._unassigned}, loads)
        for worker, cohorts in zip(free, shares, strict=True):
            if cohorts:
                self._pool.assign(worker, [SessionState.from_session(self._active[cohort]) for cohort in cohorts])
        self._unassigned.clear()

    def _handle(self, worker: WorkerHandle, message: Message) -> None:
        if isinstance(message, WorkerFailure):
            if not message.gpu_error:
                raise message.error or RuntimeError(f"a worker failed:\n{message.traceback}")
            self._pool.dismiss(worker, message.gpu_error)
        elif message.cohort in worker.cohorts and isinstance(message, Released):
            self._release(worker, message.cohort)
            self._unassigned.add(message.cohort)
            self._pool.moved += 1
        elif message.cohort in worker.cohorts and isinstance(message, RoundDone):
            session = self._active[message.cohort]
            if message.round == session.round + 1:
                self._close_round(worker, session, message)

    def _close_round(self, worker: WorkerHandle, session: Session, message: RoundDone) -> None:
        result = message.result()
        self._deaths[session.cohort] = 0
        worker.trained.append((time.monotonic(), sum(one.samples for one in result.results)))
        self._on_round(session, session.close_round(result))
        if session.idle:
            del self._active[session.cohort]
            self._release(worker, session.cohort)

    def _release(self, worker: WorkerHandle, cohort: int) -> None:
        worker.cohorts.discard(cohort)
        worker.releasing.discard(cohort)

    def _handle_death(self, worker: WorkerHandle, reason: str) -> None:
        """Other workers repeat the open rounds of its cohorts."""
        repeated = {cohort: self._active[cohort].round + 1 for cohort in sorted(worker.cohorts)}
        for cohort, number in repeated.items():
            self._deaths[cohort] += 1
            if self._deaths[cohort] >= MAX_DEATHS:
                raise ClusterError(
                    f"{MAX_DEATHS} workers died one after the other with cohort {cohort}, which came no further than "
                    f"round {number - 1}, for want of memory perhaps: resume the run with fewer workers"
                )
        self._unassigned.update(repeated)
        phrase = ", ".join(f"round {number} of cohort {cohort}" for cohort, number in repeated.items())
        log = [{"cohort": cohort, "round": number} for cohort, number in repeated.items()]
        self._on_death(worker, reason, log, phrase or "nothing")

    def _steal(self) -> None:
        """Move cohorts from the worker with the most work to each free worker that gets nothing otherwise."""
        ready = self._pool.ready
        releases = sum(bool(worker.releasing) for worker in ready)
        free = sum(not worker.cohorts for worker in ready) - releases - len(self._unassigned)
        while free > 0:
            costs = [{c: self._cost(c) for c in worker.cohorts if not worker.releasing} for worker in ready]
            found = cohorts_to_steal(costs)
            if found is None:
                return
            self._pool.take_back(ready[found[0]], found[1])
            free -= 1

    def _report(self, seconds: float) -> None:
        """The status of all workers, if the last report is older than this."""
        now = time.monotonic()
        if now - self._reported < seconds:
            return
        self._reported = now
        active = bool(self._active)  # at the end, no worker trains any more
        self._on_status([one.status(active * one.busy, active * one.throughput()) for one in self._pool.ready])


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
