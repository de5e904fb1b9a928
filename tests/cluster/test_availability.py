"""Availability of clients is the same on a cluster: it travels with the task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, ended, rounds, same, settings, start

pytestmark = pytest.mark.cluster


def test_refl_with_clients_that_go_offline(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path) -> None:
    changes = {
        "cohorts": 2, "max_rounds": 6, "federation.local_epochs": 1, "federation.participation": 0.3,
        "federation.selection": "refl", "federation.selection_args.rest": 2, "federation.over_selection": 0.5,
        "federation.straggler_policy": "stale", "devices.availability": "synthetic", "devices.online_hours": 0.02,
        "devices.offline_hours": 0.02,
    }  # fmt: skip
    out = tmp_path / "run"
    where = ["--engine", "ray", "--address", cluster.address]
    ended(start("run", "digits", *settings(SMALL | changes), *where, "--out", out))
    same(out, plain(SMALL | changes))
    assert any(record.get("stale") for cohort in rounds(out).values() for record in cohort), "no stale update"
