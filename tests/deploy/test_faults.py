"""Real nodes that die, hang, come late or answer nonsense; a SuperLink that is restarted."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import cpfl
from cpfl import experiment_file
from cpfl.cohorts import random_plan
from cpfl.data.federated import Given
from cpfl.engines.reference import ReferenceEngine
from cpfl.federation.session import Work
from cpfl.problem import prepare
from cpfl.runs import records

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


def until(there: Fleet, true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert there.processes["run"].poll() is None, f"the run ended\n{there.tail('run', 3000)}"
        assert time.monotonic() < end, f"too slow\n{there.tail('run', 3000)}"
        time.sleep(0.1)


def test_bad_nodes_are_left_out_by_name(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """One is killed in a round, one hangs, one is late; others send NaN, a wrong shape, a huge count, a forged one."""
    settings = {**SETTINGS, "clients": 9, "stopping.rounds": 10}  # enough of them for the late one to come in
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    (sound, killed, nan, silent, huge), (fine, late, shape, forged) = random_plan(9, 2, experiment.seed)
    faults = {nan: "nan", silent: "silent", huge: "huge", shape: "shape", forged: "forged"}
    there, out = fleet(secure=False), tmp_path / "run"
    # Whom a cohort's rounds depend on takes its time until the test has done what it must: rounds are not over before.
    unkilled, unseen = tmp_path / "unkilled", tmp_path / "unseen"
    gates = {sound: unkilled, fine: unseen}
    for client in {*range(9)} - {late}:
        gate: dict[str, Any] = {}
        if client in gates:
            gates[client].touch()
            gate = {"gate": str(gates[client]), "from": 3, "seconds": 8}
        there.node(client, fault=faults.get(client, ""), **gate)
    there.run(there.app(experiment), {"out": str(out), "round-seconds": 20, "wait-seconds": 30, "begin-with": 8})
    until(there, lambda: len(lines(out, 1)) >= 1, 200)
    there.node(late)
    until(there, lambda: len(lines(out, 0)) >= 1, 200)
    there.kill(f"node-{killed}")  # a round of its cohort is open: one always is
    unkilled.unlink()
    until(there, lambda: late in lines(out, 1)[-1]["participants"], 150)
    unseen.unlink()
    there.finish(150)

    first, second = lines(out, 0), lines(out, 1)
    for record in first:
        assert "not finite" in record["left_out"][str(nan)]
        assert "were due" in record["left_out"][str(huge)]
    reasons = [record["left_out"][str(silent)] for record in first]
    assert reasons[:2] == ["no answer in time", "still busy with an earlier call"]
    assert set(reasons) == set(reasons[:2])  # a long run calls it again when the SuperLink has dropped the letter
    assert killed in first[0]["participants"]
    assert str(killed) in first[-1]["left_out"]
    assert all(sound in record["participants"] for record in first)
    for record in second:
        assert "weight of its model is" in record["left_out"][str(shape)]
        assert "were due" in record["left_out"][str(forged)]
        assert fine in record["participants"]
    assert second[0]["left_out"][str(late)] == "not there yet"
    assert late in second[-1]["participants"]

    # Nothing wrong is in the models: they are what the recorded participants make in a simulation.
    problem = prepare(experiment, [], Given())
    engine = ReferenceEngine(problem, torch.device("cpu"))
    for cohort, rounds in enumerate((first, second)):
        model = problem.start
        for record in rounds:
            model = engine.do(Work(cohort, record["round"], record["participants"], model)).model
        deployed = load_file(out / "models" / f"cohort-{cohort:04d}.safetensors")
        assert all((model[key] - deployed[key]).abs().max() < 1e-5 for key in model)


def test_a_superlink_is_restarted(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """Killed in the middle of a run and started again on its database: the same nodes are there, and the run resumes
    from its folder to the models of an unbroken one."""
    settings = {**SETTINGS, "clients": 2, "stopping.rounds": 5}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    simulated = cpfl.run(experiment, engine="reference", out=tmp_path / "simulated")
    there, out, gate = fleet(lasting=True), tmp_path / "run", tmp_path / "gate"
    gate.touch()  # no round after the third is trained before the kill
    there.nodes(2, smallest=1, gate=str(gate), seconds=300, **{"from": 4})
    app = there.app(experiment)
    there.run(app, {"out": str(out)})
    until(there, lambda: len(lines(out, 0)) >= 2 and len(lines(out, 1)) >= 1, 200)
    there.kill("superlink", signal.SIGKILL)
    there.kill("run")
    gate.unlink()
    kept = {cohort: len(lines(out, cohort)) for cohort in (0, 1)}
    assert not (out / "summary.json").exists()

    there.start_link()
    there.run(app, {"out": str(out)})
    there.finish(150)
    assert min(kept.values()) >= 1
    for cohort in (0, 1):
        name = f"cohort-{cohort:04d}.safetensors"
        one, other = (load_file(path / "models" / name) for path in (simulated.path, out))
        assert all((one[key] - other[key]).abs().max() < 1e-5 for key in one)
    events = [json.loads(line)["event"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "run again"] == ["started", "resumed", "finished"]
