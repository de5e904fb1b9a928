"""A worker: a Ray actor that holds the task, trains its cohorts and sends every closed round to the driver.

The task comes through Ray's object store, once for each node, or is built from a folder of data sets on the nodes. The
workers of a node share arrays in the object store and memory-mapped images of a folder. Each worker makes for itself
what an experiment derives from a folder's images: limited sets, a held-out test set, resized public images.
"""

import contextlib
import os
import queue
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch

from cpfl import models
from cpfl.data.given import Given
from cpfl.data.sources import search_roots
from cpfl.engines.gpu_errors import device_failed, out_of_memory
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.ray import environment
from cpfl.engines.ray.cluster import limit_to_share
from cpfl.engines.ray.messages import MOVED, PAUSED, Message, Released, Replica, SessionState, WorkerFailure
from cpfl.engines.workers.pool import keep_memory
from cpfl.errors import ClusterError, CpflError, DataError, SettingError
from cpfl.models.start import FRESH
from cpfl.settings import GIVEN
from cpfl.task.population import Population
from cpfl.task.task import Task, build_task

MAX_MESSAGES = 64  # in one answer


class Worker:
    """One thread trains; the others answer the driver's calls."""

    def __init__(self, device: str, gpu_share: float = 1.0) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # never written to
        torch.set_num_threads(1)
        self._device = torch.device(device)  # Ray hides the GPUs of other workers
        self._gpu_share = gpu_share
        self._messages: queue.Queue[Message] = queue.Queue()
        self._changed = threading.Condition()
        self._sessions: dict[int, Replica] = {}
        self._new: list[SessionState] = []
        self._busy, self._since, self._training = 0.0, time.monotonic(), False

    def ping(self) -> None:
        """Answers as soon as Ray has placed this worker on a node."""

    def load(self, tasks: list[Any], driver: environment.Environment) -> dict[str, Any]:
        """Load the one task from the object store and create an engine for it; returns facts about this worker.

        The node may have joined after the driver checked the others. So its code is compared before anything of the
        driver's is unpickled.
        """
        from cpfl.engines import create  # an import at the top would be circular

        node, on_gpu = os.uname().nodename, self._device.type == "cuda"
        if other := environment.difference(environment.inspect(), driver):
            raise ClusterError(f"node {node} of the Ray cluster {other}")
        if not on_gpu:
            keep_memory()
        elif not torch.cuda.is_available():
            raise ClusterError(
                f"node {node} of the Ray cluster has GPUs that torch {torch.__version__} cannot use there: install a "
                "torch for them on all nodes, or set device = cpu"
            )
        else:
            limit_to_share(self._gpu_share)
        packed = ray.get(tasks[0])
        self._task = packed if isinstance(packed, Task) else packed()
        kind, notes = "lanes" if on_gpu else "workers", list[str]()
        try:
            self._engine = create.create_engine(kind, self._task, self._device, notes.append, 1)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise ClusterError(
                f"{self._gpu_share:g} of a GPU of node {node} has too little memory for this experiment: give a larger "
                "gpu_share, so that fewer workers share a GPU"
            ) from None
        # Lanes report models that the device has finished; another engine's may still be in the device's queue.
        self._complete = isinstance(self._engine, LaneEngine) and on_gpu
        threading.Thread(target=self._train, name="training", daemon=True).start()
        device = torch.cuda.get_device_name() if on_gpu else "cpu"
        return {"node": node, "pid": os.getpid(), "device": device, "notes": notes}

    def assign(self, states: Sequence[SessionState]) -> None:
        """Train these cohorts too; current cohorts pause after their open round, then all continue together."""
        with self._changed:
            self._new.extend(states)
            for session in self._sessions.values():
                session.request = session.request or PAUSED
            self._changed.notify()

    def release(self, cohorts: Sequence[int]) -> None:
        """Give these cohorts up after their open round; a message says when."""
        with self._changed:
            for cohort in self._sessions.keys() & set(cohorts):
                self._sessions[cohort].request = MOVED
            for state in [state for state in self._new if state.cohort in cohorts]:
                self._new.remove(state)
                self._messages.put(Released(state.cohort))

    def messages(self, seconds: float) -> tuple[list[Message], float]:
        """New messages, after waiting up to `seconds` for the first, and the share of time spent training since the
        last call."""
        found: list[Message] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._messages.get(timeout=seconds))
            while len(found) < MAX_MESSAGES:
                found.append(self._messages.get_nowait())
        now = time.monotonic()
        busy, self._busy = self._busy, 0.0
        with self._changed:
            if self._training:
                busy += now - max(self._began, self._since)
            elapsed, self._since = now - self._since, now
        return found, min(1.0, busy / elapsed) if elapsed else 0.0

    def apply(self, job: Callable[..., Any], shared: list[Any], piece: Any) -> Any:
        """Do other work than training with the task; shared items are fetched one after the other."""
        with models.threads(1):
            return job(self._task, self._device, lambda: map(ray.get, shared), piece)

    def _train(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new)
                self._training, self._began = True, time.monotonic()
            try:
                sessions: list[Replica] = []
                while sessions := self._next_sessions(sessions):
                    self._engine.train_cohorts(sessions, lambda session, closed: None)
            except BaseException as error:
                bug = RuntimeError(f"a worker failed:\n{traceback.format_exc()}")
                self._messages.put(WorkerFailure(error if isinstance(error, CpflError) else bug, device_failed(error)))
            with self._changed:
                self._training = False
                self._busy += time.monotonic() - max(self._began, self._since)

    def _next_sessions(self, sessions: list[Replica]) -> list[Replica]:
        """Sessions that only paused, and the new ones; none when all have stopped or were released."""
        with self._changed:
            for session in sessions:
                session.resume()
            active = [session for session in sessions if not session.idle]
            for state in self._new:
                replica = self._task.session(state.cohort, Replica)
                assert isinstance(replica, Replica)
                replica.send, replica.complete = self._messages.put, self._complete
                replica.layout = self._task.layout(state.cohort)
                state.restore(replica, replica.layout)
                active.append(replica)
            self._new, self._sessions = [], {session.cohort: session for session in active}
            return active


def portable(task: Task, folder: str) -> Task | Callable[[], Task]:
    """The task itself, or a function that builds it where this folder of data sets is."""
    if not folder:
        return task
    experiment, start, fingerprint = task.experiment, task.start, task.fingerprint()
    # Initial models come from the driver: no node needs the file of model.start.
    fresh = experiment.model_copy(update={"model": experiment.model.model_copy(update={"start": FRESH})})
    named = {"model": experiment.model.name, "train": experiment.data.train, "public": experiment.data.public}
    for key, name in named.items():
        if name == GIVEN:
            raise SettingError(f"node_data = {folder} cannot hold your own {key}, given in Python: leave it out")
    starts = {cohort: own.start for cohort, own in task.cohort_models.items()}
    population = Population(task.data.clients, task.fleet, task.cohorts, task.label_counts)

    def rebuild() -> Task:  # Ray sends it with the variables that it uses, which do not include the task
        found = build_task(fresh, search_roots(Path(folder)), Given(), population=population)
        for name, digest in found.fingerprint().items():
            if digest != fingerprint[name]:
                raise DataError(f"the {name} data in node_data = {folder} are not the driver's: checksums differ")
        return replace(found.starting_from(start, starts), experiment=experiment)

    return rebuild
