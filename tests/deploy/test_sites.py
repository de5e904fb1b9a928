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
from cpfl.deploy import sites
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve
from cpfl.deploy.sites import collect, site_app
from cpfl.engines.flower import letters
from cpfl.errors import CpflError
from cpfl.runs.folder import load_state

from .grid import Nodes
from .test_rounds import PUBLIC, SETTINGS, TEST, TRAIN, fault, model, quick

pytestmark = pytest.mark.timeout(60)
_ = quick  # the same pace here

EXPERIMENT = cpfl.Experiment(**SETTINGS)


def place(path: Path, clients: int, first: int, **config: Any) -> Path:
    """A run of one cohort somewhere."""
    grid = Nodes()

    def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
        at = 30 * (first + int(context.node_config["client"]))
        return TRAIN[0][at : at + 30], TRAIN[1][at : at + 30]

    for client in range(clients):
        grid.add(100 + client, client_app(model, data), client=client, smallest=2)
    told = {
        "out": str(path),
        "wait-seconds": 0.5,
        "round-seconds": 0.3,
        "set": f"cohorts=1 clients={clients}",
        **config,
    }
    serve(grid, Context(1, 0, {}, RecordDict(), told, 0), model, TEST, PUBLIC, EXPERIMENT)
    return path


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [place(tmp_path / "north", 2, 0), place(tmp_path / "south", 3, 2)]


def globally(nodes: Nodes, out: Path, **config: Any) -> cpfl.Run:
    told = {"out": str(out), "wait-seconds": 1, "device": "cpu", **config}
    collect(nodes, Context(1, 0, {}, RecordDict(), told, 0), model, TEST, PUBLIC, EXPERIMENT)
    return cpfl.load_run(out)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "LOOK", 0.1)


def test_cohorts_in_different_places(places: list[Path], tmp_path: Path, cpfl_command: Any) -> None:
    """The teachers are the places' own, the records theirs with clients numbered through; a report can be made."""
    nodes = Nodes()
    for cohort, path in reversed(list(enumerate(places))):
        nodes.add(7 - cohort, site_app(), cohort=cohort, run=str(path))
    run = globally(nodes, tmp_path / "globe")
    about = json.loads((run.path / "run.json").read_text())
    assert about["plan"] == [[0, 1], [2, 3, 4]]
    for cohort, path in enumerate(places):
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


def test_a_place_that_is_not_done_is_waited_for(places: list[Path], tmp_path: Path) -> None:
    nodes, late = Nodes(), tmp_path / "late"
    nodes.add(1, site_app(), cohort=0, run=str(places[0]))
    nodes.add(2, site_app(), cohort=1, run=str(late))
    asked = 0

    original = nodes.push_messages

    def push(messages: Any) -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            places[1].rename(late)
        return original(messages)

    nodes.push_messages = push  # type: ignore[method-assign]
    assert globally(nodes, tmp_path / "globe", **{"wait-seconds": 50}).summary["cohorts"] == 2


def test_a_quorum_of_places_is_enough(places: list[Path], tmp_path: Path) -> None:
    nodes = Nodes()
    nodes.add(1, site_app(), cohort=1, run=str(places[1]))
    nodes.add(2, site_app(), cohort=0, run=str(tmp_path / "nowhere"))
    run = globally(nodes, tmp_path / "globe", set="distillation.quorum=0.5")
    assert run.summary["cohorts"] == 1


@pytest.mark.parametrize("how", ["nan", "shape", "cohort", "records", "counts"])
def test_a_bad_place_is_not_used(places: list[Path], tmp_path: Path, how: str) -> None:
    def spoil(kind: str, content: RecordDict) -> None:
        state = letters.state(content["arrays"])
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
        content["arrays"] = letters.packed(state)

    nodes = Nodes()
    nodes.add(1, site_app(), cohort=0, run=str(places[0]))
    bad, sound = ClientApp(mods=[fault(spoil)]), site_app()
    bad.query("teacher")(lambda message, context: sound(message, context))
    nodes.add(2, bad, cohort=1, run=str(places[1]))
    with pytest.raises(CpflError, match="1 of 2 places"):
        globally(nodes, tmp_path / "globe", **{"wait-seconds": 0})
    assert not (tmp_path / "globe").exists()
