"""Legs and judgements are the same on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_lanes import assert_equal

import cpfl
from cpfl.runs import records

BASE: dict[str, Any] = {
    "precision": "float64",
    "clients": 12,
    "cohorts": 3,
    "max_rounds": 40,
    "stopping.rule": "joint",
    "stopping.every": 3,
    "stopping.gain": 1000,
    "distillation.epochs": 1,
}
CASES = {
    "ensemble": {"stopping.asked": 0.5},
    "public": {"stopping.judge": "public", "distillation.weights": "uniform", "distillation.join": "probabilities"},
    "n = 1": {"cohorts": 1},
    "n = M": {"cohorts": 12},
    "a limit": {"stopping.hours": 0.09},
    "a round a leg": {"stopping.every": 1, "federation.participation": 0.4},
}


@pytest.mark.parametrize("case", CASES)
def test_equal_on_all_engines(case: str, tmp_path: Path) -> None:
    plain, *others = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ("reference", "workers", "lanes")
    )
    said = records.read(plain.path / "judgements.jsonl")
    assert said
    for other in others:
        assert_equal(plain, other)
        for ours, theirs in zip(records.read(other.path / "judgements.jsonl"), said, strict=True):
            assert ours == {k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in theirs.items()}
    stops = {account["stop"] for account in plain.summary["by_cohort"]}
    assert stops == ({"hours"} if case == "a limit" else {"joint"})
