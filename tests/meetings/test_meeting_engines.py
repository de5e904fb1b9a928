"""Meetings are the same on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_lanes import assert_equal

import cpfl
from cpfl.engines.lanes import evaluation, scheduler
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

BASE: dict[str, Any] = {
    "precision": "float64",
    "clients": 12,
    "cohorts": 3,
    "max_rounds": 8,
    "data.train_limit": 400,
    "data.public_limit": 100,
    "meetings.rule": "mean",
    "meetings.interval": "90s",
    "distillation.epochs": 1,
}
ROUNDS = {"meetings.interval": "3 rounds"}
CASES: dict[str, dict[str, Any]] = {
    "hours, by work": {"meetings.rule_args.weights": "work", "federation.server": "fedavgm"},
    "rounds, average": ROUNDS | {"federation.server": "fedadam", "meetings.server_state": "average"},
    "reset": {"federation.server": "fedavgm", "meetings.server_state": "reset", "stopping.keep": "ema"},
    "outer": {"meetings.rule": "outer", "meetings.rule_args.weights": "work"},
    "a student": ROUNDS | {"meetings.rule": "distill", "meetings.rule_args.epochs": 2},
    "drawn anew": ROUNDS | {
        "meetings.redraw": True, "federation.server": "fedavgm", "federation.participation": 0.5,
        "meetings.rule_args.weights": "samples",
    },
    "one by one, at times": {"meetings.rule": "asynchronous", "meetings.interval": "30s", "assignment.rule": "speed"},
    "one by one, after rounds": ROUNDS | {
        "meetings.rule": "asynchronous", "meetings.rule_args.momentum": 0.5, "federation.server": "fedavgm",
        "meetings.server_state": "reset", "stopping.keep": "ema",
    },
    "clients with state": ROUNDS | {"federation.client": "scaffold", "federation.momentum": 0},
    "fedbuff": {"federation.buffer_size": 2, "meetings.interval": "15s", "meetings.rule_args.weights": "samples"},
    "stale": {
        "federation.over_selection": 1.0, "federation.participation": 0.4, "federation.straggler_policy": "stale",
        "meetings.interval": "15s",
    },
    "some leave": {"devices.availability": "synthetic", "federation.deadline": 40, "meetings.interval": "30s"},
}  # fmt: skip


def meetings(run: cpfl.Run) -> list[dict[str, Any]]:
    folder = RunFolder.open(run.path)
    checksums = ("model", "state")  # of files that are equal to rounding
    lines = records.read_sealed(folder.meetings(), folder.identity)
    return [{key: value for key, value in line.items() if key not in checksums} for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_equal_on_all_engines(case: str, tmp_path: Path) -> None:
    plain, *others = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ("reference", "workers", "lanes")
    )
    assert len(meetings(plain)) > 1
    for other in others:
        assert_equal(plain, other)
        for ours, theirs in zip(meetings(other), meetings(plain), strict=True):
            assert ours == {k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in theirs.items()}


def test_work_that_lanes_began_too_early_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: evaluations are read some steps later, and the next round was begun before."""
    monkeypatch.setitem(evaluation.MODELS, "cpu", 4)
    monkeypatch.setitem(scheduler.AHEAD, "cpu", 6)
    settings = BASE | {"federation.client": "scaffold", "federation.momentum": 0, "max_rounds": 12}
    plain, lanes = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=settings)
        for engine in ("reference", "lanes")
    )
    assert len(meetings(plain)) > 1
    assert_equal(plain, lanes)


def test_runs_that_share_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits at its meetings while the other trains."""
    monkeypatch.setitem(scheduler.AHEAD, "cpu", 6)
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "settings": BASE}
    runs = cpfl.sweep(
        "digits", cohorts=[3], out=tmp_path / "s", over={"meetings.interval": ["60s", "2 rounds"]}, **common
    )
    for run in runs:
        alone = cpfl.run(run.experiment, out=tmp_path / f"alone-{run.path.name}", engine="reference", device="cpu")
        assert meetings(run)
        assert_equal(alone, run)
