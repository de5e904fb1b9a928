"""Flower's own strategies inside cohorts, on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

import cpfl
from cpfl.settings import experiment_file

from .conftest import Fleet
from .test_faults import SETTINGS

pytestmark = pytest.mark.fleet


def test_a_strategy_for_each_cohort(fleet: Fleet, tmp_path: Path) -> None:
    """FedAdam in one cohort, Krum in the other: each trains its own nodes only, and the session keeps the records."""
    settings = {**SETTINGS, "clients": 4, "stopping.rounds": 2, "federation.lr": 0.05}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    fleet.nodes(range(4))
    fleet.run(fleet.app(tmp_path / "app", experiment, ["fedadam", "krum"]), {"out": str(tmp_path / "run")})
    fleet.finish()
    run = cpfl.load_run(tmp_path / "run")
    assert [record["stop"] for record in run.rounds] == ["", "rounds", "", "rounds"]
    assert all(len(record["participants"]) == 2 and "excluded" not in record for record in run.rounds)
    log = fleet.log("run").read_text()
    assert "configure_train: Sampled 2 nodes (out of 2)" in log
