"""A SuperLink for each cohort and a global server that collects their teachers: nodes are in this process."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

import cpfl
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve
from cpfl.deploy.sites import collect, site_app
from cpfl.engines.flower import messages
from cpfl.errors import CpflError
from cpfl.runs.folder import load_state

from .grid import Nodes, VirtualClock
from .test_rounds import PUBLIC, SETTINGS, TEST, TRAIN, fault, model

EXPERIMENT = cpfl.Experiment(**SETTINGS)


def site(path: Path, clients: int, first: int, **config: Any) -> Path:
    """A run of one cohort."""
    grid = Nodes()

    def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
        start = 30 * (first + int(context.node_config["client"]))
        return TRAIN[0][start : start + 30], TRAIN[1][start : start + 30]

    for client in range(clients):
        grid.add(100 + client, client_app(model, data), client=client, min_clients=2)
    run_config = {
        "out": str(path),
        "set": f"cohorts=1 clients={clients}",
        **config,
    }
    serve(grid, Context(1, 0, {}, RecordDict(), run_config, 0), model, TEST, PUBLIC, EXPERIMENT, clock=VirtualClock())
    return path


@pytest.fixture
def finished_sites(tmp_path: Path) -> list[Path]:
    return [site(tmp_path / "north", 2, 0), site(tmp_path / "south", 3, 2)]


def run_globally(nodes: Nodes, out: Path, **config: Any) -> cpfl.Run:
    run_config = {"out": str(out), "wait-seconds": 1, "device": "cpu", **config}
    collect(
        nodes, Context(1, 0, {}, RecordDict(), run_config, 0), model, TEST, PUBLIC, EXPERIMENT, clock=VirtualClock()
    )
    return cpfl.load_run(out)


def test_cohorts_at_different_sites(finished_sites: list[Path], tmp_path: Path, cpfl_command: Any) -> None:
    """The teachers and records are those of the sites, with clients renumbered; a report can be made."""
    nodes = Nodes()
    for cohort, path in reversed(list(enumerate(finished_sites))):
        nodes.add(7 - cohort, site_app(), cohort=cohort, run=str(path))
    run = run_globally(nodes, tmp_path / "global")
    about = json.loads((run.path / "run.json").read_text())
    assert about["cohorts"] == [[0, 1], [2, 3, 4]]
    for cohort, path in enumerate(finished_sites):
        mine, theirs = (
            load_state(p / "models" / f"cohort-{c:04d}.safetensors") for p, c in ((run.path, cohort), (path, 0))
        )
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
        assert about["label_counts"][cohort] == json.loads((path / "run.json").read_text())["label_counts"][0]
    assert run.rounds[-1]["participants"] == [2, 3, 4]
    assert run.summary["cohorts"] == 2
    assert run.summary["teachers"] == [0, 1]
    assert run.summary["student_accuracy"] > 15
    assert run.summary["rounds"] == 6
    cpfl_command("report", run.path).good()
    assert {m.metadata.message_type for m in nodes.sent} == {"query.teacher"}


def test_an_unfinished_site_is_waited_for(finished_sites: list[Path], tmp_path: Path) -> None:
    nodes, late = Nodes(), tmp_path / "late"
    nodes.add(1, site_app(), cohort=0, run=str(finished_sites[0]))
    nodes.add(2, site_app(), cohort=1, run=str(late))
    requests = 0

    original = nodes.push_messages

    def push(messages: Any) -> list[str]:
        nonlocal requests
        requests += 1
        if requests == 2:
            finished_sites[1].rename(late)
        return original(messages)

    nodes.push_messages = push  # type: ignore[method-assign]
    assert run_globally(nodes, tmp_path / "global", **{"wait-seconds": 50}).summary["cohorts"] == 2


def test_a_quorum_of_sites_is_enough(finished_sites: list[Path], tmp_path: Path) -> None:
    nodes = Nodes()
    nodes.add(1, site_app(), cohort=1, run=str(finished_sites[1]))
    nodes.add(2, site_app(), cohort=0, run=str(tmp_path / "nowhere"))
    run = run_globally(nodes, tmp_path / "global", set="distillation.quorum=0.5")
    assert run.summary["cohorts"] == 1


@pytest.mark.parametrize("how", ["nan", "shape", "cohort", "records", "counts"])
def test_an_invalid_site_is_not_used(finished_sites: list[Path], tmp_path: Path, how: str) -> None:
    def corrupt(kind: str, content: RecordDict) -> None:
        state = messages.state(content["arrays"])
        match how:
            case "nan":
                state["weight"][0, 0] = math.nan
            case "shape":
                state["weight"] = state["weight"][:2]
            case "cohort":
                content["report"]["cohort"] = 9
            case "records":
                content["report"]["records"] = "[{}]"
            case "counts":
                content["report"]["label counts"] = [1, 2]
        content["arrays"] = messages.packed(state)

    nodes = Nodes()
    nodes.add(1, site_app(), cohort=0, run=str(finished_sites[0]))
    bad, sound = ClientApp(mods=[fault(corrupt)]), site_app()
    bad.query("teacher")(lambda message, context: sound(message, context))
    nodes.add(2, bad, cohort=1, run=str(finished_sites[1]))
    with pytest.raises(CpflError, match="1 of 2 sites"):
        run_globally(nodes, tmp_path / "global", **{"wait-seconds": 0})
    assert not (tmp_path / "global").exists()


def test_a_site_with_another_base_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen must be the same at all sites: their trained parts are averaged and distilled into one."""

    def frozen() -> torch.nn.Module:
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4))
        net[0].requires_grad_(False)
        return net

    monkeypatch.setitem(globals(), "model", frozen)
    nodes = Nodes()
    nodes.add(1, site_app(), cohort=0, run=str(site(tmp_path / "north", 2, 0)))
    nodes.add(2, site_app(), cohort=1, run=str(site(tmp_path / "south", 3, 2, seed=4)))
    with pytest.raises(CpflError, match="1 of 2 sites"):
        run_globally(nodes, tmp_path / "global", **{"wait-seconds": 0})
    nodes.add(2, site_app(), cohort=1, run=str(site(tmp_path / "again", 3, 2)))
    run = run_globally(nodes, tmp_path / "global")
    start = load_state(run.path / "models" / "start.safetensors")
    assert torch.equal(run.model["0.weight"], start["0.weight"])
    assert not torch.equal(run.model["1.weight"], start["1.weight"])
