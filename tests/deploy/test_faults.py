"""Real nodes that die, hang, connect late or send invalid answers; a SuperLink that is restarted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import cpfl
from cpfl.data.given import Given
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import CpflError
from cpfl.federation.session import RoundRequest
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

from .conftest import Fleet

pytestmark = pytest.mark.fleet

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


def enrolled(fleet: Fleet, client: int) -> bool:
    return f"client {client} is node " in fleet.log("run").read_text(errors="replace")


def unlocked(path: Path) -> bool:
    """Whether no process trains in this run folder."""
    folder = RunFolder.open(path)
    try:
        folder.lock()
    except CpflError:
        return False
    folder.unlock()
    return True


def test_a_superlink_is_restarted(fleet: Fleet, tmp_path: Path) -> None:
    """Killed in the middle of a run and started again on its database: the same nodes are connected, and the run
    resumes from its folder to the models of an uninterrupted one."""
    settings = {**SETTINGS, "clients": 2, "stopping.rounds": 4}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    simulated = cpfl.run(experiment, engine="reference", out=tmp_path / "simulated")
    app, out = fleet.app(tmp_path / "app", experiment, gates={0: 3, 1: 3}), tmp_path / "run"
    gate = fleet.held(app) / "gate"
    gate.touch()  # no round after the second is trained before the kill
    fleet.nodes(range(2))
    fleet.run(app, {"out": str(out)})
    # Both nodes hold a message: one that was announced and never sent would occupy its node for a minute.
    fleet.until(lambda: all((fleet.held(app) / f"at-gate-{client}").exists() for client in range(2)))
    fleet.kill("superlink")
    fleet.kill("run")
    while not unlocked(out):  # the killed server takes its app with it
        time.sleep(0.05)
    gate.unlink()
    assert not (out / "summary.json").exists()

    fleet.start_superlink()
    fleet.run(app, {"out": str(out)})
    fleet.finish()
    for cohort in (0, 1):
        name = f"cohort-{cohort:04d}.safetensors"
        one, other = (load_file(path / "models" / name) for path in (simulated.path, out))
        assert all((one[key] - other[key]).abs().max() < 1e-5 for key in one)
    events = [json.loads(line)["event"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "run again"] == ["started", "resumed", "finished"]


# The last run of the fleet: the SuperLink counts a killed node for a minute more.
def test_invalid_nodes_are_excluded_by_name(fleet: Fleet, tmp_path: Path) -> None:
    """One is killed in a round, one hangs, one is late; one sends NaN, a wrong shape, a huge and a forged count.

    The clock is the test's: a time limit passes when the answers of all others are there.
    """
    sound, wrong, silent, other, killed, late = range(6)
    faults = {wrong: ["nan", "shape", "huge", "forged"], silent: ["silent"]}  # by round
    settings = {**SETTINGS, "cohorts": 1, "clients": 6, "stopping.rounds": 4}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    present, out = [sound, wrong, silent, other, killed], tmp_path / "run"
    # The sound client delays its third answer until the test has done its part: no round closes before.
    app = fleet.app(tmp_path / "app", experiment, faults=faults, gates={sound: 3})
    held = fleet.held(app)
    (held / "gate").touch()
    fleet.nodes(present)
    fleet.run(app, {"out": str(out), "begin-with": len(present)})
    fleet.until(lambda: all(enrolled(fleet, client) for client in present))
    (held / "skip").touch()  # nobody waits for the late one any longer
    fleet.until(lambda: len(lines(out, 0)) == 1)
    fleet.kill(f"node-{killed}")
    (held / "asleep" / str(killed)).touch()
    fleet.nodes([late])
    fleet.until(lambda: enrolled(fleet, late))
    (held / "gate").unlink()
    fleet.finish()
    (held / "asleep" / str(silent)).unlink()

    found = lines(out, 0)
    reasons = [record["excluded"][str(wrong)] for record in found]
    for words, reason in zip(("not finite", "weight of its model is", "were due", "were due"), reasons, strict=True):
        assert words in reason
    reasons = [record["excluded"][str(silent)] for record in found]
    assert reasons == ["no answer in time", *["still busy with an earlier call"] * 3]
    assert all({sound, other} <= {*record["participants"]} for record in found)
    assert [killed in record["participants"] for record in found[:2]] == [True, True]
    assert str(killed) in found[3]["excluded"]
    assert [record["excluded"].get(str(late)) for record in found] == ["not enrolled yet"] * 3 + [None]
    assert late in found[3]["participants"]

    # No invalid answer is in the models: the recorded participants give the same models in a simulation.
    task = build_task(experiment, [], Given())
    engine, model = ReferenceEngine(task, torch.device("cpu")), task.start
    for record in found:
        model = engine.do(RoundRequest(0, record["round"], record["participants"], model)).model
    deployed = load_file(out / "models" / "cohort-0000.safetensors")
    assert all((model[key] - deployed[key]).abs().max() < 1e-5 for key in model)
