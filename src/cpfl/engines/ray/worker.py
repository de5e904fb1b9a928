"""A worker: holds the problem and an engine of its own, trains the cohorts that it was given, tells of every round."""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch

from cpfl import models
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.mishaps import device_failed, short_of_memory
from cpfl.engines.ray import letters
from cpfl.engines.ray.fitness import Fitness, fitness, unlike
from cpfl.engines.ray.letters import Charge, Letter, Trouble
from cpfl.engines.ray.mirror import Mirror
from cpfl.engines.ray.sharing import settle_in
from cpfl.engines.ray.shipping import Shipped, unpacked
from cpfl.engines.workers.crew import keep_memory
from cpfl.errors import ClusterError, CpflError

MOST = 64  # letters in one answer


class Worker:
    """An actor of Ray. One thread trains; the others answer calls."""

    def __init__(self, device: str, gpu_share: float = 1.0) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # we never write
        torch.set_num_threads(1)
        self._device = torch.device(device)  # a GPU that is not ours need not be hidden, one that is ours is alone
        self._gpu_share = gpu_share
        self._letters: queue.Queue[Letter] = queue.Queue()
        self._changed = threading.Condition()
        self._sessions: dict[int, Mirror] = {}
        self._new: list[Charge] = []
        self._busy, self._since, self._training = 0.0, time.monotonic(), False

    def there(self) -> None:
        """Answers as soon as this worker has found room."""

    def open(self, problems: list[Any], label: str, here: Fitness) -> dict[str, Any]:
        """Take the one problem, in the object store, and make an engine for it. Where and what this worker is.

        The node may have joined after the others were looked at, and nothing of the driver's is read before it is
        known to have the same code.
        """
        from cpfl.engines import choice  # here, or the two would import each other

        node = os.uname().nodename
        if other := unlike(fitness(""), here):
            raise ClusterError(f"node {node} of the Ray cluster {other}")
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise ClusterError(
                f"node {node} of the Ray cluster has GPUs that torch {torch.__version__} cannot use there: install a "
                "torch for them on all nodes, or choose --device cpu"
            )
        if self._device.type == "cuda":
            settle_in(self._gpu_share)
        else:
            keep_memory()
        shipped: Shipped = ray.get(problems[0])
        self._problem = problem = unpacked(shipped)
        name = "lanes" if self._device.type == "cuda" else "workers"
        said: list[str] = []
        try:
            self._engine = choice.engine(name, problem, self._device, said.append, 1)
        except Exception as error:
            if not short_of_memory(error):
                raise
            raise ClusterError(
                f"{self._gpu_share:g} of a GPU of node {node} has too little memory for this experiment: give a larger "
                "--gpu-share, so that fewer workers share a GPU"
            ) from None
        # A lane's models are complete when it tells of them; another engine's may still be under way on the device.
        self._complete = isinstance(self._engine, LaneEngine) and self._device.type == "cuda"
        threading.Thread(target=self._live, name="training", daemon=True).start()
        device = torch.cuda.get_device_name() if self._device.type == "cuda" else "cpu"
        return {"worker": label, "node": node, "pid": os.getpid(), "device": device, "said": said}

    def take(self, charges: Sequence[Charge]) -> None:
        """Train these cohorts too; those that are here already pause between rounds, and all go on together."""
        with self._changed:
            self._new.extend(charges)
            for session in self._sessions.values():
                if not session.leaving:
                    session.returning = session.leaving = True
            self._changed.notify()

    def leave(self, cohorts: Sequence[int]) -> None:
        """Give these cohorts up, each with the round that is open; a letter tells when."""
        with self._changed:
            for cohort in cohorts:
                if cohort in self._sessions:
                    self._sessions[cohort].returning, self._sessions[cohort].leaving = False, True
            for charge in [charge for charge in self._new if charge.cohort in cohorts]:
                self._new.remove(charge)
                self._letters.put(letters.Left(charge.cohort))

    def letters(self, seconds: float) -> tuple[list[Letter], float]:
        """What has come up; waits so long for something. And the share of the time since the last call that was
        spent training."""
        found: list[Letter] = []
        try:
            found.append(self._letters.get(timeout=seconds))
            while len(found) < MOST:
                found.append(self._letters.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        share, self._busy = self._busy, 0.0
        with self._changed:
            if self._training:
                share += now - max(self._began, self._since)
            elapsed, self._since = now - self._since, now
        return found, min(1.0, share / elapsed) if elapsed else 0.0

    def apply(self, job: Callable[..., Any], shared: list[Any], piece: Any) -> Any:
        """Do something else than training with the problem; what is shared is fetched one item after the other."""
        with models.threads(1):
            return job(self._problem, self._device, lambda: map(ray.get, shared), piece)

    def _live(self) -> None:
        while True:
            with self._changed:
                while not self._new:
                    self._changed.wait()
                self._training, self._began = True, time.monotonic()
            try:
                sessions: list[Mirror] = []
                while sessions := self._next(sessions):
                    self._engine.federate(sessions, lambda session, closed: None)
            except CpflError as error:
                self._letters.put(Trouble(error, ""))
            except BaseException as error:
                self._letters.put(Trouble(None, traceback.format_exc(), device_failed(error)))
            with self._changed:
                self._training = False
                self._busy += time.monotonic() - max(self._began, self._since)

    def _next(self, sessions: list[Mirror]) -> list[Mirror]:
        """Those that only paused for others to join, and those; none when all have stopped or left."""
        with self._changed:
            for session in sessions:
                session.settle()
            going = [session for session in sessions if not session.idle]
            going += [self._session(charge) for charge in self._new]
            self._new, self._sessions = [], {session.cohort: session for session in going}
            return going

    def _session(self, charge: Charge) -> Mirror:
        session = self._problem.session(charge.cohort, Mirror)
        assert isinstance(session, Mirror)
        session.post, session.complete = self._letters.put, self._complete
        letters.put(charge, session)
        return session
