"""The half of a Flower app that runs at the server: enrol clients, sum label counts, train cohorts, distill, save."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cpfl import method, models
from cpfl.api import RUNS, execute, new_name
from cpfl.callbacks import Callback
from cpfl.data.federated import check_alike, fit, labelled
from cpfl.data.split import Clients
from cpfl.deploy import run_config
from cpfl.deploy.client import known_task
from cpfl.distillation.ensemble import check_distillation
from cpfl.engines.create import torch_device
from cpfl.engines.flower.clock import Clock
from cpfl.engines.flower.engine import FlowerEngine, MakeStrategy
from cpfl.engines.flower.enrolment import ClientRegistry, SecureCounts
from cpfl.engines.flower.message_loop import MessageLoop
from cpfl.errors import CpflError, DataError
from cpfl.federation.session import ClosedRound, Session
from cpfl.meetings.rules import meeting_rule
from cpfl.objectives.base import check_losses
from cpfl.objectives.base import objective as objective_of
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import check_snapshots, describe, restored
from cpfl.settings import Experiment, Model
from cpfl.task.loading import given_arrays
from cpfl.task.population import assign_cohorts
from cpfl.task.task import Task, UserModel

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

Source = str | Path | Experiment
"""A preset's name, a file, or the experiment itself."""

ServerData = Callable[[], Any]
"""A user's function: the test set as (inputs, labels), or the public set as inputs alone, in any form of `cpfl.run`."""


def server_app(
    model: UserModel, test: ServerData, public: ServerData, experiment: Source = "digits", strategy: MakeStrategy = None
) -> ServerApp:
    """A server that runs CPFL on all connected nodes.

    `strategy(cohort)` may give a Flower Strategy for each cohort instead of the experiment's own algorithm.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context, model, test(), public(), experiment, strategy)

    return app


def serve(
    grid: Grid,
    context: Context,
    model: UserModel,
    test: Any,
    public: Any,
    source: Source,
    strategy: MakeStrategy = None,
    clock: Clock | None = None,
) -> Path:
    """One run from the first node to the global model; the run folder. Time limits go by `clock`."""
    chosen, run = run_config.read(source, context.run_config)
    path = Path(run.out) if run.out else RUNS / new_name(chosen)
    device = torch_device(run.device)
    folder = _unfinished(path, chosen)
    chosen = folder.experiment() if folder else chosen.resolved(device.type)
    event = "resumed" if folder else "started"
    check_snapshots(chosen)
    task = server_task(chosen, model, test, public)
    method.open_sessions(task)  # a session checks its settings: errors are raised before anything is written
    registry = ClientRegistry(chosen, MessageLoop(grid, clock), log.info)
    registry.loop.run([registry.wait_for_clients(run.wait_seconds, run.begin_with or chosen.cohorts)])
    if folder:
        task = replace(restored(task, folder), cohorts=folder.about()["cohorts"])
    else:
        task = replace(task, label_counts=SecureCounts(task, registry, run.round_seconds).collect())
        about, enrolled = describe(task, None, FlowerEngine.name), sorted(registry.enrolled.items())
        about["samples"]["train"] = sum(one.training + one.validation for _, one in enrolled)
        about["fleet"] = {"nodes": {str(client): str(one.node) for client, one in enrolled}}
        folder = RunFolder.create(path, chosen, about)
    task = replace(task, enrolled=registry.enrolled)
    make_engine = partial(FlowerEngine, task, registry, run.round_seconds, run.tries, strategy)
    execute(task, folder, make_engine, device, LogCallback(), (), event)
    _write_sizes(folder, registry)
    return log_result(folder)


def server_task(experiment: Experiment, model: UserModel, test: Any, public: Any) -> Task:
    """The task as the server knows it: test and public sets, the model, the cohorts; nothing of the clients' data."""
    given = given_arrays(None, test, public, experiment, log.info)
    if given.test is None or given.public is None:
        raise DataError("the server needs a test set (inputs, labels) and a public set (inputs)")
    objective = objective_of(experiment.model)
    shape, test_set = given.test.shape, labelled(objective, given.test, "test", experiment)
    assert test_set.y is not None
    classes = objective.classes({"test": test_set.y}, experiment.data.classes or len(given.class_names))
    check_losses(objective, test_set.y, classes)
    public_set = fit(given.public, test_set, experiment.data.public_fit, experiment.seed).like(test_set)
    check_alike("public", public_set, test_set, experiment.data.inputs, "test")
    no_train = test_set.take(np.zeros(0, np.int64))
    clients = Clients(np.zeros(0, np.int64), np.zeros(experiment.clients + 1, np.int64), np.zeros(0, np.bool_))
    task = known_task(experiment, model, no_train, test_set, public_set, classes, clients)
    if other := experiment.distillation.student:
        build_student = models.factory(Model(name=other), shape, task.data.outputs, "distillation.student")
        task = replace(task, build_student=build_student)
    task = replace(task, cohorts=assign_cohorts(experiment, task.data, task.fleet, task.model_bytes))
    check_distillation(experiment.distillation, task)
    meeting_rule(task, torch.device("cpu"))
    return task


class LogCallback(Callback):
    """Writes rounds and messages to Flower's log."""

    def on_start(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            where = session.stopped or f"round {session.round + 1}"
            log.info("cohort %d: clients %s, %s", session.cohort, session.clients, where)

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        record = closed.record
        value = "–" if record.validation is None else f"{record.validation:.4f}"
        excluded = "".join(f"; without client {c}: {why}" for c, why in record.excluded.items())
        text = f"cohort {record.cohort} round {record.round}: loss {record.loss:.4f}, validation {value}"
        stop = f"; stops: {record.stop}" if record.stop else ""
        log.info(f"{text}, {record.seconds:.1f} s{excluded}{stop}")

    def on_message(self, text: str) -> None:
        log.info(text)


def log_result(folder: RunFolder) -> Path:
    """Write the score and the folder of a finished run to Flower's log; the folder's path."""
    summary = folder.summary() or {}
    found = summary["metric"], summary["student_accuracy"]
    log.info("the %s of the global model on the test set is %.2f %%: %s", *found, folder.path)
    return folder.path


def _unfinished(path: Path, experiment: Experiment) -> RunFolder | None:
    """The folder of an unfinished run of the same experiment; None: there is none, and the path is free."""
    folder = RunFolder.open(path) if (path / "run.json").is_file() else None
    if folder is None or folder.summary() is not None:
        RunFolder.check_free(path)
        return None
    found = folder.verify().experiment()
    if found != experiment.with_precision_of(found):
        raise CpflError(f"{folder.path} was started with other settings: resume it with those, or choose another out")
    return folder


def _write_sizes(folder: RunFolder, registry: ClientRegistry) -> None:
    """Add the enrolled sample counts to clients.json; the clients' own accuracies are not known here."""
    path = folder.path / "clients.json"
    tree = files.read_json(path)
    for row in tree["clients"]:
        enrolled = registry.enrolled.get(row["client"])
        row |= {"samples": enrolled.training, "held_back": enrolled.validation} if enrolled else {}
    files.write_json(path, tree)
