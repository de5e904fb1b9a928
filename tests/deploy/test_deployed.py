"""A deployed run is its simulation: the same models, records and accuracy from real processes on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import cpfl
from cpfl.dashboard.dashboard import Dashboard
from cpfl.settings import experiment_file

from .conftest import APP, Fleet
from .test_faults import SETTINGS as BY_ROUNDS

pytestmark = pytest.mark.fleet

SETTINGS = {
    "clients": 4,
    "cohorts": 2,
    "data.alpha": 5,
    "stopping.patience": 2,
    "stopping.window": 1,
    "max_rounds": 3,
    "distillation.epochs": 3,
    "federation.lr": 0.3,
    "checkpoint_seconds": 0,
}
MEET = {"meetings.rule": "mean", "meetings.rule_args.weights": "samples", "meetings.interval": "1 rounds"}


def test_equals_its_simulation(
    fleet: Fleet, cpfl_command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 nodes, 2 cohorts that meet, with TLS and node keys: models to 1e-5, the same rounds, stops and accuracy."""
    monkeypatch.syspath_prepend(APP)
    settings = {**SETTINGS, **MEET, "model.name": "quickstart:Net"}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    simulated = cpfl.run(experiment, engine="reference", out=tmp_path / "simulated")

    fleet.nodes(range(4))
    began = time.monotonic()
    fleet.run(fleet.app(tmp_path / "app", experiment), {"out": str(tmp_path / "deployed")})
    fleet.finish()
    elapsed = time.monotonic() - began
    assert fleet.trap.calls == [], "somebody called home"

    deployed = cpfl.load_run(tmp_path / "deployed")
    for name in ("start", "meeting-0001", "cohort-0000", "cohort-0001", "global"):
        one, other = (load_file(run.path / "models" / f"{name}.safetensors") for run in (simulated, deployed))
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert (value - other[key]).abs().max() < 1e-5, f"{key} of {name}"
    same = ("cohort", "round", "participants", "reporting", "best", "samples", "stop")
    for one, other in zip(simulated.rounds, deployed.rounds, strict=True):
        assert {key: one[key] for key in same} == {key: other[key] for key in same}
        assert one["validation"] == pytest.approx(other["validation"], abs=1e-5)
    for cohort in range(2):
        assert 0 < sum(record["seconds"] for record in deployed.rounds if record["cohort"] == cohort) < elapsed
    for key in ("student_accuracy", "teacher_accuracy_mean", "ensemble_accuracy", "rounds", "cohorts", "clients"):
        assert simulated.summary[key] == deployed.summary[key]
    about = [json.loads((run.path / "run.json").read_text()) for run in (simulated, deployed)]
    assert about[0]["label_counts"] == about[1]["label_counts"], "summed under masks"
    cpfl_command("report", deployed.path).good()
    assert (deployed.path / "report.html").stat().st_size > 10_000
    page, _ = Dashboard(deployed.path).fresh()
    assert b"deployed" in page or b"finished" in page


def test_a_strategy_for_each_cohort(fleet: Fleet, tmp_path: Path) -> None:
    """FedAdam in one cohort, Krum in the other: each trains its own nodes only, and the session keeps the records."""
    settings = {**BY_ROUNDS, "clients": 4, "stopping.rounds": 2, "federation.lr": 0.05}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    fleet.nodes(range(4))
    fleet.run(fleet.app(tmp_path / "app", experiment, ["fedadam", "krum"]), {"out": str(tmp_path / "run")})
    fleet.finish()
    run = cpfl.load_run(tmp_path / "run")
    assert [record["stop"] for record in run.rounds] == ["", "rounds", "", "rounds"]
    assert all(len(record["participants"]) == 2 and "excluded" not in record for record in run.rounds)
    log = fleet.log("run").read_text()
    assert "configure_train: Sampled 2 nodes (out of 2)" in log
