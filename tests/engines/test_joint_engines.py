"""Phases and evaluations are the same on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_lanes import assert_equal

import cpfl
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

BASE: dict[str, Any] = {
    "precision": "float64",
    "clients": 12,
    "cohorts": 3,
    "max_rounds": 40,
    "data.train_limit": 600,
    "data.public_limit": 200,
    "stopping.rule": "joint",
    "stopping.eval_interval": 3,
    "stopping.min_gain": 1000,
    "distillation.epochs": 1,
}
CASES = {
    "ensemble": {"stopping.client_fraction": 0.5},
    "public": {
        "stopping.metric": "public-agreement",
        "distillation.weights": "uniform",
        "distillation.aggregation": "probabilities",
    },
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 12},
    "a limit": {"stopping.max_hours": 0.09},
    "a round a phase": {"stopping.eval_interval": 1, "federation.participation": 0.4},
}


def evaluations(run: cpfl.Run) -> list[dict[str, Any]]:
    folder = RunFolder.open(run.path)
    return records.read_sealed(folder.evaluations(), folder.identity)


@pytest.mark.parametrize("case", CASES)
def test_equal_on_all_engines(case: str, tmp_path: Path) -> None:
    plain, *others = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ("reference", "workers", "lanes")
    )
    said = evaluations(plain)
    assert said
    for other in others:
        assert_equal(plain, other)
        for ours, theirs in zip(evaluations(other), said, strict=True):
            assert ours == {k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in theirs.items()}
    stops = {account["stop"] for account in plain.summary["by_cohort"]}
    assert stops == ({"hours"} if case == "a limit" else {"joint"})
