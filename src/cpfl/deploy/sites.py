"""Cohorts at different sites: every cohort has its own SuperLink, and a global server collects and distills.

Each site runs an ordinary run of one cohort. Beside its server runs a node of the global SuperLink. After the cohort
has stopped, this node sends the teacher, the records and the label counts from the run folder. The global server
learns of no client and of no client's data.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from cpfl import method
from cpfl.api import RUNS, new_name
from cpfl.deploy import run_config
from cpfl.deploy.server import LogCallback, ServerData, Source, log, log_result, server_task
from cpfl.engines.create import torch_device
from cpfl.engines.flower import messages
from cpfl.engines.flower.clock import Clock
from cpfl.engines.flower.engine import FlowerEngine
from cpfl.engines.flower.message_loop import Call, Conversation, MessageLoop, pause
from cpfl.engines.flower.messages import ARRAYS, REPORT, Refused
from cpfl.errors import CpflError
from cpfl.models import State
from cpfl.privacy import label_counts
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.recorder import RunRecorder
from cpfl.runs.reload import describe, save_initial_models
from cpfl.settings import experiment_file
from cpfl.task.task import Task, UserModel

TEACHER = "query.teacher"
PAUSE_SECONDS = 5.0  # between requests to sites that have not finished
ANSWER_SECONDS = 120.0  # for a site to answer
MINIMUM = {"clock": 0, "cpu_seconds": 0, "bytes": 0, "round": 1}  # of numbers in a record


@dataclass(frozen=True)
class SiteResult:
    """What a site sends."""

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
        """The content of the run folder; before the cohort has stopped, only its number of rounds."""
        folder = RunFolder(Path(str(context.node_config["run"])))
        lines = records.read(folder.rounds(0))
        if not (lines and lines[-1]["stop"] and folder.teacher(0).is_file()):
            return Message(messages.answer({"rounds": len(lines)}), reply_to=message)
        about = folder.about()
        if len(about["cohorts"]) != 1:
            raise CpflError(f"{folder.path} has {len(about['cohorts'])} cohorts: a site runs one")
        report = {
            "cohort": int(context.node_config["cohort"]),
            "records": json.dumps(lines),
            "label counts": about["label_counts"][0] or [],
            "clients": len(about["cohorts"][0]),
        }
        model = messages.packed(load_state(folder.teacher(0)))
        return Message(RecordDict({ARRAYS: model, **messages.answer(report)}), reply_to=message)

    return app


def collector_app(model: UserModel, test: ServerData, public: ServerData, experiment: Source) -> ServerApp:
    """The global server: waits for as many sites as the experiment has cohorts, then distills."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        collect(grid, context, model, test(), public(), experiment)

    return app


def collect(
    grid: Grid,
    context: Context,
    model: UserModel,
    test: Any,
    public: Any,
    source: Source,
    clock: Clock | None = None,
) -> Path:
    """One global run from the first teacher to the global model; the run folder. Time limits go by `clock`."""
    chosen, run = run_config.read(source, context.run_config)
    path = Path(run.out) if run.out else RUNS / new_name(chosen)
    RunFolder.check_free(path)
    device, began = torch_device(run.device), time.perf_counter()
    like = server_task(chosen, model, test, public)
    needed = max(1, round(chosen.distillation.quorum * chosen.cohorts))
    loop = MessageLoop(grid, clock)
    sites = loop.run([_collect_sites(loop, like, needed, run.wait_seconds)])[0]
    sizes = {"clients": sum(site.clients for site in sites), "cohorts": len(sites), "distillation.quorum": 1.0}
    task = server_task(experiment_file.with_settings(chosen, sizes), model, test, public)
    ends = list(accumulate(site.clients for site in sites))  # clients are numbered from site to site
    cohorts = [list(range(end - site.clients, end)) for end, site in zip(ends, sites, strict=True)]
    counts = label_counts.from_rows([site.label_counts for site in sites], task.data.classes)
    task = replace(task.starting_from(like.start, {}), cohorts=cohorts, label_counts=counts)
    folder = _write_folder(path, task, sites)
    folder.log("started", engine=FlowerEngine.name, device=str(device))
    training, settings = time.perf_counter() - began, task.experiment.distillation
    recorder = RunRecorder(folder, task.experiment, LogCallback())
    teachers = recorder.teachers(settings)
    outcome = method.distill(task, teachers, settings, device, recorder.on_epoch)
    rate = teachers.costs["samples"] / max(teachers.hours * 3600, training, 1e-9)
    seconds = round(time.perf_counter() - began, 3)
    more = {"wall_seconds": seconds, "samples_per_second": round(rate, 1), "device": device.type}
    recorder.save(outcome, engine=FlowerEngine.name, **more)
    folder.log("finished")
    folder.unlock()
    return log_result(folder)


def _collect_sites(loop: MessageLoop, like: Task, needed: int, seconds: float) -> Conversation:
    """Request teachers until `needed` sites have sent theirs; their results in the order of the cohorts."""
    found: dict[int, SiteResult] = {}  # by node
    last_useful = loop.clock.now()
    while True:
        waiting = sorted(loop.connected(refresh=True) - found.keys() - loop.busy)
        requests = dict.fromkeys(waiting, messages.answer({}))
        answers = (yield Call(TEACHER, requests, ANSWER_SECONDS)) if waiting else {}
        for node, answer in answers.items():
            try:
                site = answer.read(partial(_site_result, like))
            except Refused as why:
                log.info("the result of node %d is not used: %s", node, why)
                continue
            last_useful = loop.clock.now()
            if site is not None and site.cohort not in [one.cohort for one in found.values()]:
                found[node] = site
                log.info("cohort %d: %d rounds by %d clients", site.cohort, len(site.records), site.clients)
        if len(found) >= needed:
            return sorted(found.values(), key=lambda site: site.cohort)
        if loop.clock.now() - last_useful > seconds:
            sent = f"{len(found)} of {needed} sites sent a teacher"
            raise CpflError(f"{sent}, and for {seconds:.0f} s no site answered (wait-seconds)")
        yield pause(PAUSE_SECONDS)


def _site_result(like: Task, content: RecordDict) -> SiteResult | None:
    """What a site sent, if it is valid; None: its cohort has not stopped."""
    report: Any = content.config_records[REPORT]
    if "cohort" not in report:
        return None
    lines, labels = json.loads(report["records"]), [int(count) for count in report["label counts"]]
    cohort, clients = int(report["cohort"]), int(report["clients"])
    if not all(line[key] >= least for line in lines for key, least in MINIMUM.items()):
        raise Refused("a number in its records is too small")
    if labels and (len(labels) != like.data.classes or min(labels) < 0):
        raise Refused(f"it counts {len(labels)} classes, there are {like.data.classes}")
    if not (0 <= cohort < like.experiment.cohorts and clients >= 1 and lines):
        raise Refused(f"cohort {cohort} with {clients} clients: there are {like.experiment.cohorts} cohorts")
    model = messages.checked_state(content, like.start)
    if not all(torch.equal(model[name], value) for name, value in like.layout().frozen.items()):
        raise Refused("the frozen parameters of its model are not those of the global server's (model.start, seed)")
    return SiteResult(cohort, model, lines, labels or None, clients)


def _write_folder(path: Path, task: Task, sites: Sequence[SiteResult]) -> RunFolder:
    """A run folder like that of one SuperLink."""
    about = {**describe(task, None, FlowerEngine.name), "sites": [site.cohort for site in sites]}
    folder = RunFolder.create(path, task.experiment, about)
    save_initial_models(folder, task)
    for cohort, site in enumerate(sites):
        first, rounds = task.cohorts[cohort][0], folder.rounds(cohort)
        numbers = {"cohort": cohort, "round": len(site.records), "best_round": 0}
        records.append(rounds, *(_renumbered(record, cohort, first) for record in site.records))
        folder.save(folder.teacher(cohort), site.model, {**numbers, **records.RunningDigest(rounds).facts})
    return folder


def _renumbered(line: dict[str, Any], cohort: int, first: int) -> dict[str, Any]:
    """A site's record with the numbers that its cohort and clients have in the whole."""
    participants = [client + first for client in line["participants"]]
    found = {**line, "cohort": cohort, "participants": participants, "slowest": line["slowest"] + first}
    found.pop("snapshots", None)  # they stay at the site
    if line.get("excluded"):
        found["excluded"] = {str(int(client) + first): why for client, why in line["excluded"].items()}
    return found
