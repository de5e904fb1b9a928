"""Cohorts in different places: every cohort has a SuperLink of its own, a global server collects and distils.

At each place an ordinary run of one cohort goes on. Beside its server stands a node of the global SuperLink, which does
nothing but hand over what the run folder holds once the cohort has stopped: its teacher, its records and its label
counts. No client and no client's data is ever known to the global server.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from cpfl import experiment_file, method
from cpfl.api import RUNS, new_name
from cpfl.deploy import settings
from cpfl.deploy.server import Log, ServerData, server_problem
from cpfl.engines.flower import checks, letters
from cpfl.engines.flower.checks import Refused
from cpfl.engines.flower.letters import ARRAYS, REPORT
from cpfl.engines.flower.post import Answer, Call, Post, Talk, pause
from cpfl.errors import CpflError
from cpfl.experiment import Experiment
from cpfl.models import State
from cpfl.opening import describe, torch_device
from cpfl.privacy import counts
from cpfl.problem import OwnModel, Problem
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state

log = logging.getLogger("flwr")
TEACHER = "query.teacher"
LOOK = 5.0  # seconds between questions to a place that is not done
SECONDS = 120.0  # a place has so long to answer


@dataclass(frozen=True)
class Taught:
    """What a place hands over."""

    cohort: int
    model: State
    records: list[dict[str, Any]]
    label_counts: list[int] | None
    clients: int


def site_app() -> ClientApp:
    """The node beside a cohort's server; its configuration names the cohort and the run folder: cohort=0 run="…"."""
    app = ClientApp()

    @app.query("teacher")
    def teacher(message: Message, context: Context) -> Message:
        return Message(hand_over(context), reply_to=message)

    return app


def hand_over(context: Context) -> RecordDict:
    """What the run folder holds, or that it is not done."""
    folder = RunFolder(Path(str(context.node_config["run"])))
    lines = records.read(folder.rounds(0))
    if not (lines and lines[-1]["stop"] and folder.teacher(0).is_file()):
        return letters.answer(ConfigRecord({"rounds": len(lines)}))
    about = folder.about()
    if len(about["plan"]) != 1:
        raise CpflError(f"{folder.path} has {len(about['plan'])} cohorts: a place runs one")
    told: dict[str, Any] = {
        "cohort": int(context.node_config["cohort"]),
        "records": json.dumps(lines),
        "label counts": about["label_counts"][0] or [],
        "clients": len(about["plan"][0]),
    }
    return RecordDict({ARRAYS: letters.packed(load_state(folder.teacher(0))), REPORT: ConfigRecord(told)})


def collector_app(
    model: OwnModel, test: ServerData, public: ServerData, experiment: str | Path | Experiment
) -> ServerApp:
    """The global server: waits for as many places as the experiment has cohorts, then distils."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        collect(grid, context, model, test(), public(), experiment)

    return app


def collect(
    grid: Grid, context: Context, model: OwnModel, test: Any, public: Any, experiment: str | Path | Experiment
) -> Path:
    """One global run: from the first teacher to the global model; the run folder."""
    chosen, run = settings.read(experiment, context.run_config)
    path = Path(run.out) if run.out else RUNS / new_name(chosen)
    RunFolder.check_free(path)
    device, watcher, began = torch_device(run.device), Log(), time.perf_counter()
    like = server_problem(chosen, model, test, public)
    needed = max(1, round(chosen.distillation.quorum * chosen.cohorts))
    taught = Post(grid).hold(Collecting(grid, like, needed, run.wait_seconds).talk())
    problem = replace(_joined(chosen, model, test, public, taught), start=like.start)
    folder = _written(path, problem, taught)
    folder.lock()
    try:
        folder.log("started", engine="flower", device=str(device))
        training = time.perf_counter() - began
        plain = problem.experiment.distillation
        outcome = method.distil_cohorts(problem, folder, plain, folder.path, device, watcher)
        summary = {
            **outcome,
            "wall_seconds": round(time.perf_counter() - began, 3),
            "samples_per_second": round(outcome["samples"] / max(outcome["hours"] * 3600, training, 1e-9), 1),
            "engine": "flower",
            "device": device.type,
        }
        files.write_json(folder.path / "summary.json", summary)
        folder.log("finished")
    finally:
        folder.unlock()
    log.info("the global model answers %.2f %% of the test set: %s", summary["student_accuracy"], folder.path)
    return folder.path


class Collecting:
    """Asks places for their teachers until enough have handed theirs over."""

    def __init__(self, grid: Grid, like: Problem, needed: int, seconds: float) -> None:
        self._grid, self._like, self._needed, self._seconds = grid, like, needed, seconds
        self._taught: dict[int, Taught] = {}  # by cohort
        self._done: set[int] = set()  # nodes

    def talk(self) -> Talk:
        """All teachers, in the order of the cohorts."""
        heard = time.monotonic()
        while len(self._taught) < self._needed:
            waiting = sorted(set(self._grid.get_node_ids()) - self._done)
            letter = letters.answer(ConfigRecord({}))
            answers = (yield Call(TEACHER, dict.fromkeys(waiting, letter), SECONDS)) if waiting else {}
            useful = [self._take(node, answer) for node, answer in answers.items()]
            if any(useful):
                heard = time.monotonic()
            if len(self._taught) < self._needed:
                if time.monotonic() - heard > self._seconds:
                    raise CpflError(
                        f"{len(self._taught)} of {self._needed} places handed over a teacher, "
                        f"and for {self._seconds:.0f} s nobody was heard of (wait-seconds)"
                    )
                yield pause(LOOK)
        return [self._taught[cohort] for cohort in sorted(self._taught)]

    def _take(self, node: int, answer: Answer) -> bool:
        """Whether a place that can be of use was heard of."""
        try:
            found = _read(answer, self._like)
        except Refused as why:
            log.info("what node %d hands over is not used: %s", node, why)
            return False
        if found is not None and found.cohort not in self._taught:
            self._taught[found.cohort] = found
            self._done.add(node)
            log.info("cohort %d: %d rounds by %d clients", found.cohort, len(found.records), found.clients)
        return True


def _read(answer: Answer, like: Problem) -> Taught | None:
    """A place's teacher; None: it is not done yet."""
    if answer.content is None:
        raise Refused(answer.trouble)
    try:
        told: Any = answer.content.config_records[REPORT]
        if "cohort" not in told:
            return None
        model = letters.state(answer.content.array_records[ARRAYS])
        lines, labels = json.loads(told["records"]), [int(count) for count in told["label counts"]]
        cohort, clients = int(told["cohort"]), int(told["clients"])
        for line in lines:
            if not (line["clock"] >= 0 and line["cpu_seconds"] >= 0 and line["bytes"] >= 0 and line["round"] >= 1):
                raise ValueError
    except Exception as error:  # whatever a foreign answer makes us stumble over
        raise Refused(f"it cannot be read ({type(error).__name__})") from None
    if labels and (len(labels) != like.data.classes or min(labels) < 0):
        raise Refused(f"it counts {len(labels)} classes, there are {like.data.classes}")
    if not (0 <= cohort < like.experiment.cohorts and clients >= 1 and lines):
        raise Refused(f"cohort {cohort} with {clients} clients: there are {like.experiment.cohorts} cohorts")
    checks.same_form(model, like.start)
    return Taught(cohort, {name: model[name] for name in like.start}, lines, labels or None, clients)


def _joined(chosen: Experiment, model: OwnModel, test: Any, public: Any, taught: Sequence[Taught]) -> Problem:
    """The problem of all places together: their cohorts, clients numbered through."""
    sizes = {"clients": sum(t.clients for t in taught), "cohorts": len(taught), "distillation.quorum": 1.0}
    problem = server_problem(experiment_file.with_settings(chosen, sizes), model, test, public)
    plan, at = [], 0
    for one in taught:
        plan.append(list(range(at, at + one.clients)))
        at += one.clients
    known = counts.read([one.label_counts for one in taught], problem.data.classes)
    return replace(problem, plan=plan, label_counts=known)


def _written(path: Path, problem: Problem, taught: Sequence[Taught]) -> RunFolder:
    """A run folder as one SuperLink would have written it."""
    about = {**describe(problem, None), "places": [one.cohort for one in taught]}
    folder = RunFolder.create(path, problem.experiment, about)
    files.save_tensors(folder.model("start"), problem.start, {"round": 0, "clock": 0.0})
    for cohort, one in enumerate(taught):
        first = problem.plan[cohort][0]
        lines = [_renumbered(line, cohort, first) for line in one.records]
        numbers = {"cohort": cohort, "round": len(lines), "best_round": 0}
        files.save_tensors(folder.teacher(cohort), one.model, numbers)
        records.append(folder.rounds(cohort), *lines)
    return folder


def _renumbered(line: dict[str, Any], cohort: int, first: int) -> dict[str, Any]:
    left_out = {str(int(client) + first): why for client, why in line.get("left_out", {}).items()}
    return {
        **line,
        "cohort": cohort,
        "participants": [client + first for client in line["participants"]],
        "slowest": line["slowest"] + first,
        **({"left_out": left_out} if left_out else {}),
    }
