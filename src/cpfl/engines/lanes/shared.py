"""Lanes that several runs share: a run enters when there is room, and leaves when it has no more to train."""

import json
import math
from collections.abc import Callable, Sequence

import torch

from cpfl import models
from cpfl.engines.lanes.engine import MOST, LaneEngine
from cpfl.engines.lanes.member import Member, Rows, adds_up
from cpfl.engines.lanes.scheduler import Scheduler, Training
from cpfl.engines.shared import RunEngine, SharedEngine, at_once
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


class SharedLanes(SharedEngine):
    """One set of lanes for runs with the same common settings."""

    name = "lanes"

    def __init__(self, experiments: Sequence[Experiment], device: torch.device, make: MakeLanes) -> None:
        super().__init__(device)
        self.alternates = device.type == "cuda"
        self._make, self._experiments = make, experiments
        self._engine: LaneEngine | None = None
        self._scheduler: Scheduler | None = None
        self._members: dict[RunEngine, Member] = {}
        self._in_lanes: dict[int, tuple[RunEngine, Training]] = {}  # by member

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
                done = list(self._in_lanes)
                for _, training in self._in_lanes.values():
                    training.error = error
        ended = [self._in_lanes.pop(number) for number in done]
        for run, training in ended:
            run.end_request(training.error)
        return [run for run, _ in ended]

    def release(self, run: RunEngine) -> None:
        """A run has left: its rows are free."""
        if member := self._members.pop(run, None):
            assert self._engine is not None, "it was in the lanes"
            self._engine.buffers.release(member)

    def _enter(self, run: RunEngine) -> bool:
        """Have a run's sessions trained, if there is room; False: it can never be in these lanes."""
        assert self._engine is not None, "lanes were made"
        assert self._scheduler is not None, "it was made with the lanes"
        if any(run is other for other, _ in self._in_lanes.values()):
            return True
        if run not in self._members:
            if not self._engine.fits(run.task):
                run.refuse()
                return False
            if member := self._engine.admit(run.task):
                self._members[run] = member
        if member := self._members.get(run):
            request = run.requested()
            self._in_lanes[member.number] = run, self._scheduler.add(member, request.sessions, request.on_round)
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
