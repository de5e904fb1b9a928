"""A tune on a cluster finds what it finds in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.nodes import Nodes, ended, settings, start
from tests.tune.small_tunes import SETTINGS

import cpfl
from cpfl.tuning.result import read

pytest.importorskip("ray")
pytest.importorskip("optuna")


@pytest.mark.cluster
def test_a_tune_on_a_cluster_is_that_of_one_process(cluster: Nodes, tmp_path: Path) -> None:
    own = SETTINGS | {"max_rounds": 4}
    words = [
        "--hours",
        "0.02",
        "--trials",
        "4",
        "--points",
        "4",
        "--batch",
        "2",
        "--seeds",
        "1",
        "--search",
        "cohorts=1,2",
    ]
    where = ["--engine", "ray", "--address", cluster.address, "--workers", "1", "--out", "ray"]
    ended(start("tune", "digits", *settings(own), *words, *where, cwd=tmp_path))
    plain = cpfl.tune(
        "digits", hours=0.02, trials=4, points=4, batch=2, seeds=1, search={"cohorts": [1, 2]}, settings=own,
        out=tmp_path / "plain", engine="workers", workers=1,
    )  # fmt: skip
    here, there = plain.tree, read(tmp_path / "ray")
    assert [trial["curve"] for trial in there["trials"]] == [trial["curve"] for trial in here["trials"]]
    assert [trial["state"] for trial in there["trials"]] == [trial["state"] for trial in here["trials"]]
    assert there["recommendation"] == here["recommendation"]
    assert there["tests"] == here["tests"]
    assert there["request"]["engine"] == "ray"
