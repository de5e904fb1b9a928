"""The same experiment gives the same records in one process, on a local cluster and on five workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import content
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, ended, rounds, same, settings, start

pytestmark = pytest.mark.cluster
pytest.importorskip("ray")


def test_client_state_and_the_joint_stopping_rule(plain: Callable[..., Path], tmp_path: Path) -> None:
    """SCAFFOLD's client states travel with a cohort; the rule joint evaluates in the driver between two phases."""
    changes = {
        "federation.client": "scaffold", "federation.momentum": 0, "federation.local_epochs": 2,
        "stopping.rule": "joint", "stopping.eval_interval": 3, "max_rounds": 6,
    }  # fmt: skip
    out = tmp_path / "run"
    process = start("run", "digits", *settings(SMALL | changes), "--engine", "ray", "--workers", "2", "--out", out)
    alone = plain(SMALL | changes)
    text = ended(process)
    assert "Ray: 2 workers on 1 node, a core each" in text
    assert "precision float32; " in text
    same(out, alone)
    evaluated, expected = content(out / "evaluations.jsonl"), content(alone / "evaluations.jsonl")
    assert evaluated == expected != b""
    assert json.loads((out / "summary.json").read_text())["engine"] == "ray"


FEW: dict[str, Any] = SMALL | {"cohorts": 2, "max_rounds": 6, "distillation.epochs": 1}
COMBINED: dict[str, dict[str, Any]] = {
    "buffered updates, a stateful server optimizer, two models": {
        "federation.buffer_size": 3, "federation.concurrency": 6, "federation.server": "fedadam",
        "assignment.rule": "speed", "model.by_cohort.1": "femnist-cnn", "devices.crash_rate": 0.1,
    },
    "a stateful selection, a server optimizer that compares all models": {
        "federation.selection": "oort", "federation.participation": 0.5, "federation.server": "krum",
        "federation.server_args.num_byzantine": 1, "federation.server_args.num_selected": 3,
        "assignment.rule": "label-balanced",
    },
}  # fmt: skip


@pytest.mark.parametrize("combined", COMBINED)
def test_algorithms_together(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path, combined: str) -> None:
    """Each of two workers has a cohort with its planner, its server optimizer's state and its model."""
    changes, out = FEW | COMBINED[combined], tmp_path / "run"
    where = ["--engine", "ray", "--address", cluster.address]
    process = start("run", "digits", *settings(changes), *where, "--out", out)
    alone = plain(changes)
    ended(process)
    same(out, alone)
    kept = rounds(out)
    assert sorted(kept) == ["cohort-0000", "cohort-0001"]
    if "federation.buffer_size" in changes:
        assert all(any(record.get("stale") for record in cohort) for cohort in kept.values())
        assert len({(out / "models" / f"{name}.safetensors").stat().st_size // 10_000 for name in kept}) == 2
    else:
        assert all(len({tuple(record["participants"]) for record in cohort}) > 3 for cohort in kept.values())


MEETINGS: dict[str, dict[str, Any]] = {
    "an outer optimizer, the mean of the servers' state, cohorts drawn anew": {
        "meetings.rule": "outer", "meetings.rule_args.weights": "work", "meetings.interval": "2 rounds",
        "federation.server": "fedavgm", "meetings.server_state": "average", "meetings.redraw": True,
    },
    "at times, evaluated, without public samples": {
        "meetings.rule": "mean", "meetings.interval": "30s", "stopping.rule": "joint", "stopping.min_gain": 0,
        "federation.client": "scaffold", "federation.momentum": 0, "meetings.final": "merge", "data.public": "none",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", MEETINGS)
def test_cohorts_that_meet(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path, case: str) -> None:
    """The driver merges; the cohorts go back to the workers with the merged model and what their servers keep."""
    merges = "data.public" in MEETINGS[case]
    gone = [key for key in FEW if merges and (key.startswith("distillation") or key == "data.public_limit")]
    changes = {key: value for key, value in FEW.items() if key not in gone} | MEETINGS[case]
    out = tmp_path / "run"
    where = ["--engine", "ray", "--address", cluster.address]
    process = start("run", "digits", *settings(changes), *where, "--out", out)
    alone = plain(changes)
    ended(process)
    same(out, alone)
    for name in ("meetings.jsonl", *(["evaluations.jsonl"] if merges else [])):
        assert content(out / name) == content(alone / name) != b""
    for model in alone.glob("models/meeting-*.safetensors"):
        assert content(out / "models" / model.name) == content(model)


def test_five_workers_with_a_cohort_each(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path) -> None:
    tiny = {"cohorts": 5, "max_rounds": 2, "data.public_limit": 1500, "distillation.epochs": 1}
    out, node = tmp_path / "run", cluster.add(cpus=3)
    try:
        process = start("run", "digits", *settings(tiny), "--engine", "ray", "--address", cluster.address, "--out", out)
        alone = plain(tiny)
        assert "Ray: 5 workers on 4 nodes, a core each" in ended(process)
    finally:
        cluster.dismiss(node)
    same(out, alone)
