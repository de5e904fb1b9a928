"""A sweep on a cluster: one queue of runs, large ones on several workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.nodes import Nodes, ended, events, settings, start

import cpfl
from cpfl import experiment_file

pytest.importorskip("ray")

from cpfl.sweep import on_ray

QUICK = {"max_rounds": 3, "data.public_limit": 100, "distillation.epochs": 1}


def test_a_run_gets_its_part_of_the_cluster() -> None:
    digits = experiment_file.load("digits")
    small, large = (experiment_file.with_settings(digits, {"max_rounds": rounds}) for rounds in (10, 70))
    one = experiment_file.with_settings(large, {"cohorts": 1})
    assert on_ray.slots({"a": small, "b": large}, 8) == {"a": 1, "b": 4}  # no more than its cohorts
    assert on_ray.slots({"a": one, "b": one}, 8) == {"a": 1, "b": 1}
    assert set(on_ray.slots({str(k): large for k in range(20)}, 8).values()) == {1}


def began(run: Path) -> str:
    engine: str = events(run)[0]["engine"]
    return engine


@pytest.mark.cluster
def test_a_sweep_on_two_nodes_is_that_of_one_process(cluster: Nodes, tmp_path: Path) -> None:
    """First n = 2 alone, which gets both slots, then beside it n = 1, which gets one."""
    where = ["--engine", "ray", "--address", cluster.address, "--out", tmp_path / "ray"]
    for cohorts in ("2", "1,2"):
        ended(start("sweep", "digits", *settings(QUICK), "--cohorts", cohorts, *where))
    cpfl.sweep("digits", cohorts=[1, 2], out=tmp_path / "here", settings=QUICK, engine="workers")
    for name in ("n001-seed90", "n002-seed90"):
        for path in sorted((tmp_path / "here" / name / "rounds").iterdir()):
            assert path.read_bytes() == (tmp_path / "ray" / name / "rounds" / path.name).read_bytes()
    assert [began(tmp_path / "ray" / name) for name in ("n001-seed90", "n002-seed90")] == ["workers", "ray"]
    assert json.loads((tmp_path / "ray" / "sweep.json").read_text())["engine"] == "ray"
