"""Lanes that several runs share: a run enters when there is room, and leaves when it has no more to train.

Every run has a `RunEngine`, which its own code uses as any engine. What it asks for is done when `SharedLanes.train` is
called, together with what the other runs ask for.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cpfl import models
from cpfl.engines.base import Engine, OnRound
from cpfl.engines.lanes.engine import MOST, LaneEngine
from cpfl.engines.lanes.member import Member, Rows, adds_up
from cpfl.engines.lanes.scheduler import Scheduler, Training
from cpfl.federation import local_training
from cpfl.federation.session import Session
from cpfl.settings import Experiment, Federation
from cpfl.settings.choices import CLIENT_OPTIMIZERS
from cpfl.task.task import Task

OWN = (  # sections and settings that every run may have its own of
    "name", "cohorts", "clients", "seed", "max_rounds", "snapshots", "checkpoint_seconds", "assignment", "stopping",
    "meetings", "devices", "distillation", "privacy",
)  # fmt: skip
OWN_DATA = (
    "split", "alpha", "remainder", "column", "shards", "validation", "validation_min_samples", "public",
    "public_splits", "public_mean", "public_std", "public_fit", "public_limit",
)  # fmt: skip
OWN_FEDERATION = (
    "lr", "lr_schedule", "lr_schedule_args", "warmup_rounds", "local_epochs", "local_steps", "server", "server_args",
    "weights", "participation", "participants", "selection", "selection_args", "over_selection", "deadline",
    "straggler_policy", "min_results",
)  # fmt: skip
FULL = 2  # clients that can train at once, for each lane: then no lane waits for the end of a round
MEMORY = 0.25  # of the device, for models of all runs
COPIES = 6  # of a cohort's model on the device, about

MakeLanes = Callable[[Sequence[Task], Rows, Sequence[Federation]], LaneEngine]


def common_settings(experiment: Experiment) -> str:
    """Runs can share lanes if this is the same for them, and their samples and what of the model is not trained."""
    tree = experiment.model_dump(mode="json")
    kept = {key: value for key, value in tree.items() if key not in OWN}
    kept["data"] = {key: value for key, value in tree["data"].items() if key not in OWN_DATA}
    settings = experiment.federation
    ours = settings.client in CLIENT_OPTIMIZERS.names
    if ours and adds_up(settings):  # else an optimizer may look at any setting
        kept["federation"] = {key: value for key, value in tree["federation"].items() if key not in OWN_FEDERATION}
    return json.dumps(kept, sort_keys=True)


def at_once(task: Task) -> float:
    """The clients of a task that can train at the same time: a round lasts as long as its longest client."""
    sizes, settings = task.data.clients.training_sizes, task.experiment.federation
    steps = [local_training.all_steps(settings, sizes[np.asarray(clients)]) for clients in task.cohorts]
    return sum(float(own.sum() / own.max()) for own in steps)


@dataclass
class Request:
    """What a run asks for while its code waits."""

    sessions: Sequence[Session]
    on_round: OnRound
    training: Training | None = None  # since it is in the lanes
    refused: bool = False  # it cannot be in these lanes


class RunEngine(Engine):
    """What one run sees of shared lanes."""

    name = "lanes"

    def __init__(self, lanes: "SharedLanes", wait: Callable[[], None], alone: Callable[[Task], Engine]) -> None:
        """`wait` returns when what was asked for is done; `alone` makes an engine for a run that cannot share."""
        self._lanes, self._wait, self._make_alone, self.device = lanes, wait, alone, lanes.device.type
        self.member: Member | None = None
        self.request: Request | None = None
        self._alone: Engine | None = None

    def prepare(self, task: Task, device: torch.device) -> None:
        """Remember what is to be trained."""
        self.task = task

    def train_cohorts(self, sessions: Sequence[Session], on_round: OnRound) -> None:
        """Wait until these sessions are trained."""
        active = [session for session in sessions if not session.idle]
        if not active:
            return
        if self._alone is None:
            self.request = request = Request(active, on_round)
            self._wait()
            self.request = None
            if request.training is not None and request.training.error is not None:
                raise request.training.error
            if not request.refused:
                return
            self._alone = self._make_alone(self.task)
            self.name = self._alone.name
        self._alone.train_cohorts(active, on_round)

    def pause(self) -> None:
        """Let other runs work: their kernels fill a GPU that a student alone does not."""
        if self.device == "cuda":
            self._wait()

    def refuse(self) -> bool:
        """It cannot be in these lanes."""
        assert self.request is not None, "it waits for something"
        self.request.refused = True
        return True

    def fail(self, error: Exception) -> None:
        """What it waits for has failed."""
        assert self.request is not None, "it waits for something"
        assert self.request.training is not None, "it was in the lanes"
        self.request.training.error = error

    def close(self) -> None:
        """Leave the lanes."""
        if self.member is not None:
            self._lanes.release(self.member)
            self.member = None
        if self._alone is not None:
            self._alone.close()


class SharedLanes:
    """One set of lanes for runs with the same common settings."""

    def __init__(self, experiments: Sequence[Experiment], device: torch.device, make: MakeLanes) -> None:
        self.device, self._make, self._experiments = device, make, experiments
        self._engine: LaneEngine | None = None
        self._scheduler: Scheduler | None = None
        self._requests: dict[int, RunEngine] = {}  # of runs in the lanes, by member

    def full(self, runs: Sequence[RunEngine]) -> bool:
        """Whether these runs keep all lanes busy."""
        lanes = self._engine.large.count if self._engine else MOST.get(self.device.type, MOST["cpu"])
        return len(runs) > 1 and sum(at_once(run.task) for run in runs) >= FULL * lanes

    def train(self, waiting: Sequence[RunEngine], steps: float = math.inf) -> list[RunEngine]:
        """Train what these runs wait for, until one or more of them have it, or for so many steps; who has it."""
        with models.threads(1):
            if self._scheduler is None:
                tasks = [run.task for run in waiting]
                try:
                    self._engine = self._make(
                        tasks, self._room(tasks[0]), [one.federation for one in self._experiments]
                    )
                except Exception:  # each run says why, when it has an engine of its own
                    return [run for run in waiting if run.refuse()]
                self._scheduler = Scheduler(self._engine)
            if refused := [run for run in waiting if not self._enter(run)]:
                return refused
            try:
                done = [one.member.number for one in self._scheduler.work(steps)]
            except Exception as error:  # the device's
                done = list(self._requests)
                for run in self._requests.values():
                    run.fail(error)
        return [self._requests.pop(number) for number in done]

    def release(self, member: Member) -> None:
        """A run has left: its rows are free."""
        assert self._engine is not None, "it was in the lanes"
        self._engine.buffers.release(member)

    def _enter(self, run: RunEngine) -> bool:
        """Have a run's sessions trained, if there is room; False: it can never be in these lanes."""
        assert self._engine is not None, "lanes were made"
        assert self._scheduler is not None, "it was made with the lanes"
        request = run.request
        assert request is not None, "it waits for something"
        if request.training is not None:
            return True
        if run.member is None:
            if not self._engine.fits(run.task):
                run.refuse()
                return False
            run.member = self._engine.admit(run.task)
        if run.member is not None:
            request.training = self._scheduler.add(run.member, request.sessions, request.on_round)
            self._requests[run.member.number] = run
        return True

    def _room(self, task: Task) -> Rows:
        """Rows for all runs, or for as many of the largest as memory allows."""
        memory = torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 2**32
        row = task.layout().size * task.data.transform.dtype.itemsize
        free, total = MEMORY * memory, Rows(0, 0, 0)
        state = int(bool(CLIENT_OPTIMIZERS.find(task.experiment.federation.client).has_client_state))
        models = 0 if adds_up(task.experiment.federation) else 1
        for one in sorted(self._experiments, key=lambda one: -one.clients - COPIES * one.cohorts):
            own = Rows(one.cohorts, one.clients, one.clients)
            free -= row * (COPIES * own.cohorts + state * own.clients + models * own.models)
            if total.cohorts and free < 0:
                break
            total += own
        return total
