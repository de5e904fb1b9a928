"""Flower's own strategies inside cohorts, on real nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cpfl
from cpfl import experiment_file

from .conftest import Fleet
from .test_faults import SETTINGS

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(280)]


def test_a_strategy_for_each_cohort(fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    """FedAdam in one, Krum in the other: each trains its own nodes alone, the session keeps the records."""
    settings = {**SETTINGS, "clients": 4, "stopping.rounds": 2, "federation.lr": 0.05}
    experiment = experiment_file.with_settings(experiment_file.load("digits"), settings)
    there = fleet(secure=False)
    there.nodes(4, smallest=9)
    there.run(there.app(experiment, "fedadam krum"), {"out": str(tmp_path / "run")})
    there.finish(220)
    run = cpfl.load_run(tmp_path / "run")
    assert [record["stop"] for record in run.rounds] == ["", "rounds", "", "rounds"]
    assert all(len(record["participants"]) == 2 and "left_out" not in record for record in run.rounds)
    told = there.log("run").read_text()
    assert "configure_train: Sampled 2 nodes (out of 2)" in told
