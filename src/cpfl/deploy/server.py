"""The half of a Flower app that runs at the server: gather, plan, count labels, federate, distil, save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from cpfl import method, models
from cpfl.api import RUNS, new_name
from cpfl.data.federated import FederatedData, transforms
from cpfl.data.samples import Samples
from cpfl.data.split import Clients
from cpfl.deploy import settings
from cpfl.deploy.settings import RunSettings
from cpfl.devices import Fleet
from cpfl.distillation.student import EpochRecord
from cpfl.engines.flower.counting import Counting
from cpfl.engines.flower.engine import FlowerEngine
from cpfl.engines.flower.parts import Part
from cpfl.engines.flower.post import Post
from cpfl.engines.flower.roll import Roll
from cpfl.engines.flower.strategies import CohortGrid, StrategyPart
from cpfl.errors import CpflError, DataError
from cpfl.experiment import Experiment, Model
from cpfl.federation.session import Closed, Session
from cpfl.opening import check_moment, describe, given_arrays, torch_device
from cpfl.planning import plan_cohorts
from cpfl.privacy import counts
from cpfl.problem import OwnModel, Problem, own_factory
from cpfl.runs import files
from cpfl.runs.folder import RunFolder, load_state

log = logging.getLogger("flwr")  # what `flwr run --stream` shows

ServerData = Callable[[], Any]
"""A user's function: the test set as (inputs, labels), or the public set as inputs alone."""


def server_app(
    model: OwnModel,
    test: ServerData,
    public: ServerData,
    experiment: str | Path | Experiment = "digits",
    strategy: Callable[[int], Strategy] | None = None,
) -> ServerApp:
    """A server that runs CPFL over whatever nodes are connected.

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
    model: OwnModel,
    test: Any,
    public: Any,
    experiment: str | Path | Experiment,
    strategy: Callable[[int], Strategy] | None = None,
) -> Path:
    """One run from first node to global model; the run folder."""
    chosen, run = settings.read(experiment, context.run_config)
    path = Path(run.out) if run.out else RUNS / new_name(chosen)
    folder = _unfinished(path)
    resumed = folder is not None
    if folder:
        chosen = _same(folder, chosen)
    else:
        RunFolder.check_free(path)
    check_moment(chosen)
    watcher, device = Log(), torch_device(run.device)
    problem = server_problem(chosen, model, test, public)
    method.plan(problem)  # what a session refuses is told before anything is written
    post, roll = Post(grid), Roll(chosen, watcher.on_note)
    _gather(post, roll, run, chosen, watcher)
    if folder:
        problem = _reopened(problem, folder)
    else:
        counted = Counting(problem, post, roll, watcher.on_note, run.round_seconds).all()
        problem = replace(problem, label_counts=counted)
        folder = RunFolder.create(path, chosen, _about(problem, roll))
    folder.lock()
    try:
        if not folder.model("start").is_file():
            files.save_tensors(folder.model("start"), problem.start, {"round": 0, "clock": 0.0})
        part = _parts(strategy, roll, grid, watcher.on_note) if strategy else None
        engine = FlowerEngine(problem, post, roll, watcher.on_note, run.round_seconds, run.tries, part)
        folder.log("resumed" if resumed else "started", engine=engine.name, device=str(device))
        summary = method.cpfl(problem, folder, engine, device, watcher)
        _tell_sizes(folder, roll)
        folder.log("finished")
    finally:
        folder.unlock()
    watcher.on_note(f"the global model answers {summary['student_accuracy']:.2f} % of the test set: {folder.path}")
    return folder.path


def server_problem(experiment: Experiment, model: OwnModel, test: Any, public: Any) -> Problem:
    """What the server knows: test and public sets, the model, the plan; of the clients' data nothing."""
    given = given_arrays(None, test, public)
    if given.test is None or given.public is None:
        raise DataError("the server needs a test set (inputs, labels) and a public set (inputs)")
    assert given.test.y is not None
    shape, classes = given.test.shape, experiment.data.classes or int(given.test.y.max()) + 1
    if given.public.shape != shape:
        raise DataError(f"the public set's samples have shape {given.public.shape}, the test set's {shape}")
    transform, public_transform = transforms(experiment)
    nothing = Samples(given.test.x[:0], given.test.y[:0])
    nobody = Clients(np.zeros(0, np.int64), np.zeros(experiment.clients + 1, np.int64), np.zeros(0, np.bool_))
    augmented = experiment.data.augment != "none"
    held = FederatedData(nothing, given.test, given.public, classes, nobody, transform, public_transform, augmented)
    build = own_factory(model)
    other = experiment.distillation.student
    build_student = models.factory(Model(name=other), shape, classes, "distillation.student") if other else build
    start = models.fresh(build, experiment.seed, "init", transform.dtype)
    models.check(start, transform(torch.as_tensor(given.test.x[:2])), classes)
    state = models.state_of(start)
    ones = np.ones(experiment.clients)  # never asked: real rounds are measured
    size = models.wire_bytes(experiment.model, state)
    devices = Fleet(ones, ones)
    plan = plan_cohorts(experiment, held, devices, size)
    hidden = np.full((experiment.cohorts, classes), counts.HIDDEN)
    return Problem(experiment, held, build, build_student, devices, plan, state, size, hidden)


class Log:
    """A watcher that tells Flower's log."""

    def on_start(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            at = f"round {session.round + 1}" if not session.stopped else session.stopped
            log.info("cohort %d: clients %s, %s", session.cohort, session.clients, at)

    def on_round(self, session: Session, closed: Closed) -> None:
        record = closed.record
        value = "–" if record.validation is None else f"{record.validation:.4f}"
        without = "".join(f"; without client {c}: {why}" for c, why in record.left_out.items())
        ending = f"; stops: {record.stop}" if record.stop else ""
        log.info(
            "cohort %d round %d: loss %.4f, validation %s, %.1f s%s%s",
            record.cohort, record.round, record.loss, value, record.seconds, without, ending,
        )  # fmt: skip

    def on_epoch(self, record: EpochRecord) -> None:
        """An epoch of the student is not worth a line here."""

    def on_note(self, text: str) -> None:
        log.info("%s", text)


def _gather(post: Post, roll: Roll, run: RunSettings, experiment: Experiment, watcher: Log) -> None:
    begin = run.begin_with or experiment.cohorts
    if not post.hold(roll.gather(post, run.wait_seconds, begin)):
        raise CpflError(
            f"{len(roll.places)} of {experiment.clients} clients showed up in {run.wait_seconds:.0f} s, "
            f"{begin} are needed (begin-with)"
        )
    missing = sorted(set(range(experiment.clients)) - roll.places.keys())
    if missing:
        watcher.on_note(f"beginning without clients {missing}: they are in as soon as they show up")


def _unfinished(path: Path) -> RunFolder | None:
    if not (path / "run.json").is_file():
        return None
    folder = RunFolder.open(path)
    return folder if folder.summary() is None else None


def _same(folder: RunFolder, chosen: Experiment) -> Experiment:
    stored = folder.experiment()
    if stored != chosen:
        raise CpflError(f"{folder.path} was begun with other settings: go on with those, or choose another out")
    return stored


def _reopened(problem: Problem, folder: RunFolder) -> Problem:
    about = folder.about()
    if folder.model("start").is_file():
        stored = load_state(folder.model("start"))
        problem = replace(problem, start={name: stored[name] for name in problem.start})
    told = counts.read(about["label_counts"], problem.data.classes)
    return replace(problem, plan=about["plan"], label_counts=told)


def _about(problem: Problem, roll: Roll) -> dict[str, Any]:
    about = describe(problem, None)
    about["samples"]["train"] = sum(place.training + place.validation for place in roll.places.values())
    about["fleet"] = {"nodes": {str(client): str(place.node) for client, place in sorted(roll.places.items())}}
    return about


def _tell_sizes(folder: RunFolder, roll: Roll) -> None:
    """clients.json with what clients enrolled with; what the model is worth to each, only they could say."""
    path = folder.path / "clients.json"
    tree = files.read_json(path)
    for row in tree["clients"]:
        place = roll.places.get(row["client"])
        row |= {"samples": place.training, "held_back": place.validation} if place else {}
    files.write_json(path, tree)


def _parts(
    strategy: Callable[[int], Strategy], roll: Roll, grid: Grid, note: Callable[[str], None]
) -> Callable[[Session], Part]:
    list(grid.get_node_ids())  # connects, once

    def part(session: Session) -> Part:
        nodes = [roll.places[client].node for client in session.clients if client in roll.places]
        return StrategyPart(strategy(session.cohort), session, CohortGrid(grid, nodes), note)

    return part
