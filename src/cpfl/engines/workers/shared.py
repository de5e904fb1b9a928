"""One pool of workers for several runs: while one waits for its slowest client, the others have work."""

import math
from collections.abc import Callable, Sequence

import torch

from cpfl.engines.shared import RunEngine, SharedEngine, at_once
from cpfl.engines.workers.engine import WorkerEngine
from cpfl.engines.workers.pool import WorkerPool
from cpfl.task.task import Task

FULL = 3  # clients that can train at once, for each worker: it has one, and the next one waits for it
MakeEngine = Callable[[Task, WorkerPool], WorkerEngine]


class SharedWorkers(SharedEngine):
    """So many workers for all runs of a sweep."""

    name = "workers"

    def __init__(self, workers: int, make: MakeEngine) -> None:
        super().__init__(torch.device("cpu"))
        self._workers, self._make = workers, make
        self._pool = WorkerPool(workers)
        self._engines: dict[RunEngine, WorkerEngine] = {}
        self._in_work: set[RunEngine] = set()

    def full(self, runs: Sequence[RunEngine]) -> bool:
        """Whether these runs keep all workers busy."""
        return len(runs) > 1 and sum(at_once(run.task) for run in runs) >= FULL * self._workers

    def train(self, waiting: Sequence[RunEngine], steps: float) -> list[RunEngine]:
        """Do jobs until a run has what it waits for, or only what can be done without waiting."""
        for run in waiting:
            if run not in self._in_work:
                try:
                    if run not in self._engines:
                        self._engines[run] = self._make(run.task, self._pool)
                    request = run.requested()
                    self._engines[run].begin(request.sessions, request.on_round)
                    self._in_work.add(run)
                except Exception as error:  # it ends alone
                    if run in self._engines:
                        self._engines[run].run.fail(error)
                    run.end_request(error)
                    return [run]
        self._pool.work(wait_for_answers=math.isinf(steps))
        done = [run for run in waiting if not self._engines[run].run.busy]
        for run in done:
            self._in_work.discard(run)
            run.end_request(self._engines[run].run.error)
            self._engines[run].run.forget()
        return done

    def release(self, run: RunEngine) -> None:
        """A run has left."""
        self._in_work.discard(run)
        if engine := self._engines.pop(run, None):
            self._pool.remove(engine.run)

    def close(self) -> None:
        """End the workers."""
        self._pool.end()
