"""The driver's view of the workers: started, polled for messages, found dead, replaced."""

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import exceptions
from ray.exceptions import RayTaskError

from cpfl.engines.ray import environment
from cpfl.engines.ray._ray_internals import NODE_DIED
from cpfl.engines.ray.cluster import Cluster, one_line
from cpfl.engines.ray.messages import Message
from cpfl.engines.ray.worker import Worker
from cpfl.errors import ClusterError, CpflError

POLL_SECONDS = 1.0  # a worker waits so long for its next message
PLACEMENT_SECONDS = 300.0  # for Ray to place a worker, first or replacement: others may use the cluster
ACTOR_THREADS = 4  # one answers with messages, the others take orders
THROUGHPUT_SECONDS = 10.0  # over which a worker's throughput is measured
MAX_STARTS = 3  # failed starts in a row before the others continue without this worker
# A worker's death shows as a failed call, or as the loss of an answer over 100 KB, which Ray keeps on its node.
DEATHS = (
    exceptions.RayActorError, exceptions.ObjectLostError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
)  # fmt: skip


@dataclass(eq=False)
class WorkerHandle:
    """One worker."""

    name: str
    actor: Any
    starts: int = 1  # of workers in this position that failed to start, this one included
    placed: bool = False  # it has a slot and loads the task, which takes long if much is compiled
    why_dead: str = ""  # also the error of a GPU for which it is killed
    lost_with_node: bool = False  # Ray had not yet known that the node was lost
    facts: dict[str, Any] = field(default_factory=dict)
    cohorts: set[int] = field(default_factory=set)  # assigned to it
    releasing: set[int] = field(default_factory=set)  # of those, the ones it was asked to release
    busy: float = 0.0
    trained: deque[tuple[float, int]] = field(default_factory=deque)  # (time, samples) of closed rounds

    @property
    def ready(self) -> bool:
        """It has loaded the task."""
        return bool(self.facts)

    def throughput(self) -> float:
        """Recent samples per second."""
        now = time.monotonic()
        while self.trained and now - self.trained[0][0] > THROUGHPUT_SECONDS:
            self.trained.popleft()
        return sum(samples for _, samples in self.trained) / THROUGHPUT_SECONDS

    def status(self, load: float, throughput: float) -> dict[str, Any]:
        """Its line in the display of workers."""
        known = {key: self.facts[key] for key in ("node", "pid", "device")}
        measured = {"load": round(load, 3), "samples_per_second": round(throughput, 1)}
        return {"worker": self.name, **known, "cohorts": sorted(self.cohorts), **measured}


class WorkerPool:
    """All workers of a run."""

    def __init__(self, cluster: Cluster, task: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: the seconds by which the time for placement ends."""
        self._cluster, self._task, self._environment = cluster, task, environment.inspect()
        self.clock = clock
        self.workers: list[WorkerHandle] = []
        self._numbers = itertools.count()
        self._pending: dict[Any, tuple[WorkerHandle, str]] = {}  # worker and call, by reference to the answer
        self._last_placed = clock()  # when some worker last had a slot

    def start(self) -> None:
        """Start all workers and wait until they have loaded the task; the first failure is raised."""
        for _ in range(self._cluster.workers):
            self._add(1)
        deadline = self.clock() + PLACEMENT_SECONDS
        while any(not w.ready and (w.placed or self.clock() < deadline) for w in self.workers):
            self.receive(POLL_SECONDS, starting=True)
        if late := sum(not worker.placed for worker in self.workers):
            raise ClusterError(
                f"{late} of {len(self.workers)} workers found no free slot on the Ray cluster in "
                f"{PLACEMENT_SECONDS:.0f} s, which others may use: wait, or ask for fewer workers"
            )

    def _add(self, starts: int) -> None:
        """One more worker, as soon as the cluster has a slot for it."""
        options = {"num_cpus": 1.0, "num_gpus": self._cluster.gpus, "max_concurrency": ACTOR_THREADS}
        actor = ray.remote(Worker).options(**options).remote(self._cluster.device, self._cluster.gpus)
        worker = WorkerHandle(f"worker {next(self._numbers)}", actor, starts)
        self.workers.append(worker)
        self._pending[actor.ping.remote()] = worker, "ping"
        self._pending[actor.load.remote([self._task], self._environment)] = worker, "load"

    def replace(self, dead: WorkerHandle) -> str:
        """Start another worker in its position; after too many failed starts, the sentence that says so instead."""
        if dead.ready or dead.lost_with_node or dead.starts < MAX_STARTS:
            self._add(1 if dead.ready else dead.starts + (not dead.lost_with_node))
            return ""
        failed = f"{MAX_STARTS} workers one after the other could not start, the last one because: {dead.why_dead}"
        if not self.workers:
            raise ClusterError(f"no worker of the Ray cluster is left, and {failed}")
        return f"{failed}; the other {len(self.workers)} continue"

    @property
    def ready(self) -> list[WorkerHandle]:
        """Workers that can take work."""
        return [worker for worker in self.workers if worker.ready]

    def receive(
        self, seconds: float, starting: bool = False
    ) -> tuple[list[tuple[WorkerHandle, Message]], list[WorkerHandle]]:
        """New messages, and the workers found dead; waits up to `seconds`.

        While the pool is `starting`, the first failure is raised. Afterwards it is an error if no worker is placed for
        too long.
        """
        if any(worker.placed for worker in self.workers):
            self._last_placed = self.clock()
        elif not starting and self.clock() - self._last_placed > PLACEMENT_SECONDS:
            raise ClusterError(
                f"no worker of the Ray cluster is left, and none came in {PLACEMENT_SECONDS:.0f} s: "
                "resume the run when there are some"
            )
        received: list[tuple[WorkerHandle, Message]] = []
        dead: list[WorkerHandle] = []
        references = list(self._pending)
        ray.wait(references, num_returns=1, timeout=seconds)
        for reference in ray.wait(references, num_returns=len(references), timeout=0)[0]:
            worker, call = self._pending.pop(reference)
            if worker not in self.workers:  # found dead by another of its answers
                continue
            try:
                answer = ray.get(reference)
            except RayTaskError as error:
                reason = unwrapped(error)
                if worker.ready or starting:
                    raise reason from None
                why = one_line(reason if isinstance(reason, CpflError) else error.cause)
            except DEATHS as error:
                if starting:
                    last = (str(error).strip().splitlines() or [""])[-1]
                    raise ClusterError(f"a worker of the Ray cluster does not start: {last}") from None
                worker.lost_with_node = NODE_DIED in str(error)
                why = one_line(error)
            else:
                worker.placed = True
                if call == "ping":
                    continue
                if call == "load":
                    worker.facts = answer
                else:
                    messages, worker.busy = answer
                    received += [(worker, message) for message in messages]
                self._pending[worker.actor.messages.remote(POLL_SECONDS)] = worker, "messages"
                continue
            self.workers.remove(worker)
            ray.kill(worker.actor)  # it may only be unreachable: no round may be trained twice
            worker.why_dead = worker.why_dead or why
            dead.append(worker)
        return received, dead

    def close(self) -> None:
        """Kill all workers."""
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker.actor)
        self.workers.clear()
        self._pending.clear()


def unwrapped(error: RayTaskError) -> Exception:
    """What went wrong on a worker, as the driver reports it."""
    cause = error.cause
    if isinstance(cause, exceptions.RaySystemError):  # it cannot unpickle what it was sent: usually a missing module
        reason = (str(cause).strip().splitlines() or [""])[0].removeprefix("System error: ")
        return ClusterError(
            f"a worker of the Ray cluster cannot load the experiment ({reason}): every node needs your own modules, "
            "installed or in a folder of the driver's path that it sees"
        )
    return cause if isinstance(cause, CpflError) else error
