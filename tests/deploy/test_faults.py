"""Real nodes that die, hang, connect late or send invalid answers; a SuperLink that is restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import cpfl
from cpfl.cohorts.base import ClientView, RandomAssignment, as_cohorts
from cpfl.data.federated import Given
from cpfl.engines.reference import ReferenceEngine
from cpfl.federation.session import RoundRequest
from cpfl.runs import records
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

from .conftest import Fleet

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

SETTINGS = {
    "data.alpha": 5,
    "cohorts": 2,
    "stopping.rule": "rounds",
    "stopping.rounds": 4,
    "stopping.keep": "last",
    "distillation.epochs": 1,
    "federation.lr": 0.3,
    "checkpoint_seconds": 0,
}


def lines(path: Path, cohort: int) -> list[dict[str, Any]]:
    return records.read(path / "rounds" / f"cohort-{cohort:04d}.jsonl")


def until(local: Fleet, true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert local.processes["run"].poll() is None, f"the run ended\n{local.tail('run', 3000)}"
        assert time.monotonic() < end, f"too slow\n{local.tail('run', 3000)}"
        time.sleep(0.1)


def test_invalid_nodes_are_excluded_by_name(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """One is killed in a round, one hangs, one is late; others send NaN, a wrong shape, a huge or a forged count."""
    settings = {**SETTINGS, "clients": 9, "stopping.rounds": 10}  # enough for the late one to take part
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    cohort_of = RandomAssignment().assign(ClientView(9, experiment.seed), 2)
    (sound, killed, nan, silent, huge), (fine, late, shape, forged) = as_cohorts("random", cohort_of, 9, 2)
    faults = {nan: "nan", silent: "silent", huge: "huge", shape: "shape", forged: "forged"}
    local, out = fleet(), tmp_path / "run"
    # One sound client of each cohort delays its answers until the test has done its part: no round closes before.
    unkilled, unseen = tmp_path / "unkilled", tmp_path / "unseen"
    gates = {sound: unkilled, fine: unseen}
    for client in {*range(9)} - {late}:
        gate: dict[str, Any] = {}
        if client in gates:
            gates[client].touch()
            gate = {"gate": str(gates[client]), "from": 3, "seconds": 8}
        local.node(client, fault=faults.get(client, ""), **gate)
    local.run(local.app(experiment), {"out": str(out), "round-seconds": 20, "wait-seconds": 30, "begin-with": 8})
    until(local, lambda: len(lines(out, 1)) >= 1, 200)
    local.node(late)
    until(local, lambda: len(lines(out, 0)) >= 1, 200)
    local.kill(f"node-{killed}")  # a round of its cohort is open: one always is
    unkilled.unlink()
    until(local, lambda: late in lines(out, 1)[-1]["participants"], 150)
    unseen.unlink()
    local.finish(150)

    first, second = lines(out, 0), lines(out, 1)
    for record in first:
        assert "not finite" in record["excluded"][str(nan)]
        assert "were due" in record["excluded"][str(huge)]
    reasons = [record["excluded"][str(silent)] for record in first]
    assert reasons[:2] == ["no answer in time", "still busy with an earlier call"]
    assert set(reasons) == set(reasons[:2])  # a long run calls it again after the SuperLink has dropped the message
    assert killed in first[0]["participants"]
    assert str(killed) in first[-1]["excluded"]
    assert all(sound in record["participants"] for record in first)
    for record in second:
        assert "weight of its model is" in record["excluded"][str(shape)]
        assert "were due" in record["excluded"][str(forged)]
        assert fine in record["participants"]
    assert second[0]["excluded"][str(late)] == "not enrolled yet"
    assert late in second[-1]["participants"]

    # No invalid answer is in the models: the recorded participants give the same models in a simulation.
    task = build_task(experiment, [], Given())
    engine = ReferenceEngine(task, torch.device("cpu"))
    for cohort, rounds in enumerate((first, second)):
        model = task.start
        for record in rounds:
            model = engine.do(RoundRequest(cohort, record["round"], record["participants"], model)).model
        deployed = load_file(out / "models" / f"cohort-{cohort:04d}.safetensors")
        assert all((model[key] - deployed[key]).abs().max() < 1e-5 for key in model)


def test_a_superlink_is_restarted(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """Killed in the middle of a run and started again on its database: the same nodes are connected, and the run
    resumes from its folder to the models of an uninterrupted one."""
    settings = {**SETTINGS, "clients": 2, "stopping.rounds": 5}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    simulated = cpfl.run(experiment, engine="reference", out=tmp_path / "simulated")
    local, out, gate = fleet(persistent=True), tmp_path / "run", tmp_path / "gate"
    gate.touch()  # no round after the third is trained before the kill
    local.nodes(2, min_clients=1, gate=str(gate), seconds=300, **{"from": 4})
    app = local.app(experiment)
    local.run(app, {"out": str(out)})
    until(local, lambda: len(lines(out, 0)) >= 2 and len(lines(out, 1)) >= 1, 200)
    local.kill("superlink")
    local.kill("run")
    gate.unlink()
    kept = {cohort: len(lines(out, cohort)) for cohort in (0, 1)}
    assert not (out / "summary.json").exists()

    local.start_superlink()
    local.run(app, {"out": str(out)})
    local.finish(150)
    assert min(kept.values()) >= 1
    for cohort in (0, 1):
        name = f"cohort-{cohort:04d}.safetensors"
        one, other = (load_file(path / "models" / name) for path in (simulated.path, out))
        assert all((one[key] - other[key]).abs().max() < 1e-5 for key in one)
    events = [json.loads(line)["event"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "run again"] == ["started", "resumed", "finished"]
