"""The same experiment gives the same records in one process and on a cluster of this machine's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import ended, same, settings, start

pytestmark = pytest.mark.cluster
pytest.importorskip("ray")


def test_algorithms_that_remember_and_cohorts_that_wait_to_be_judged(
    plain: Callable[..., Path], tmp_path: Path
) -> None:
    """SCAFFOLD's rows travel with a cohort, and the rule joint judges in the driver between two legs."""
    changes = {
        "federation.local": "scaffold", "federation.momentum": 0, "federation.local_epochs": 2,
        "stopping.rule": "joint", "stopping.every": 3,
    }  # fmt: skip
    out = tmp_path / "run"
    process = start("run", "digits", *settings(SMALL | changes), "--engine", "ray", "--workers", "2", "--out", out)
    alone = plain(SMALL | changes)
    assert "Ray: 2 workers on 1 node, a core each" in ended(process)
    same(out, alone)
    assert (out / "judgements.jsonl").read_text() == (alone / "judgements.jsonl").read_text()
    assert json.loads((out / "summary.json").read_text())["engine"] == "ray"
