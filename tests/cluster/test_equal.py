"""The same experiment gives the same records in one process and on two nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, same, settings, start

pytestmark = pytest.mark.cluster


def test_two_workers_give_the_records_of_one_process(
    cluster: Nodes, plain: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    place = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    process = start("run", "digits", *settings(SMALL), *place, "--out", out)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Ray: 2 workers on 3 nodes, a core each" in said
    same(out, plain())
    assert json.loads((out / "summary.json").read_text())["engine"] == "ray"


def test_algorithms_that_remember_and_cohorts_that_wait_to_be_judged(
    cluster: Nodes, plain: Callable[..., Path], tmp_path: Path
) -> None:
    """SCAFFOLD's rows travel with a cohort, and the rule joint judges in the driver between two legs."""
    changes = {
        "federation.local": "scaffold", "federation.momentum": 0, "stopping.rule": "joint", "stopping.every": 3,
    }  # fmt: skip
    out = tmp_path / "run"
    words = settings({**SMALL, **changes})
    process = start("run", "digits", *words, "--engine", "ray", "--address", cluster.address, "--out", out)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    same(out, plain(**changes))
    assert (out / "judgements.jsonl").read_text() == (plain(**changes) / "judgements.jsonl").read_text()
