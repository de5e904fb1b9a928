"""Rounds that do not go to plan on every engine: the same records and models, and the same after a break."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.engines.test_lanes import BASE, assert_equal

import cpfl
from cpfl.data.given import Given
from cpfl.engines.lanes import LaneEngine
from cpfl.engines.reference import ReferenceEngine
from cpfl.engines.workers import WorkerEngine
from cpfl.federation.session import ClosedRound, Session
from cpfl.method import open_sessions
from cpfl.task.task import build_task

if TYPE_CHECKING:
    from conftest import Interrupter

FEW = {"federation.participation": 0.4}
ALL = "reference", "workers", "lanes"
CASES: dict[str, dict[str, Any]] = {
    "oort": {**FEW, "federation.selection": "oort"},
    "power-of-choice": {**FEW, "federation.selection": "power-of-choice"},
    "over-selection, crashes": {
        **FEW, "federation.over_selection": 0.5, "devices.crash_rate": 0.4, "federation.min_results": 4,
    },
    "partial work": {"federation.deadline": 8, "federation.straggler_policy": "partial", "federation.local_epochs": 2},
    "partial work of steps": {
        "federation.deadline": 8, "federation.straggler_policy": "partial", "federation.local_steps": 9,
    },
    "refl": {**FEW, "federation.selection": "refl", "devices.availability": "synthetic", "devices.online_hours": 0.02,
             "devices.offline_hours": 0.02},
    "waits for several": {
        "federation.min_results": 4, "devices.availability": "synthetic", "devices.online_hours": 0.02,
        "devices.offline_hours": 0.05,
    },
    "stale": {**FEW, "federation.over_selection": 1.0, "federation.straggler_policy": "stale"},
    "fedbuff": {"federation.buffer_size": 3, "federation.concurrency": 6, "devices.crash_rate": 0.2},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_reference(case: str, tmp_path: Path) -> None:
    runs = [
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ALL
    ]
    assert [run.summary["engine"] for run in runs] == list(ALL)
    for run in runs[1:]:
        assert_equal(runs[0], run)
    records = runs[0].rounds
    if case == "over-selection, crashes":
        assert sum(record.get("repeats", 0) for record in records) == runs[0].summary["repeats"] > 0
    if case in ("over-selection, crashes", "refl"):
        total = sum(record.get("wasted_cpu_seconds", 0) for record in records) / 3600
        assert runs[0].summary["wasted_cpu_hours"] == pytest.approx(total)
        assert 0 < total < runs[0].summary["cpu_hours"]
    if case == "waits for several":
        assert min(len(record["participants"]) for record in records) >= 4
    if case in ("stale", "fedbuff"):
        assert sum(record.get("stale", 0) for record in records) > 5
    if case.startswith("partial"):
        plain = cpfl.run("digits", out=tmp_path / "plain", engine="lanes", device="cpu", settings=BASE)
        assert runs[0].summary["samples"] != plain.summary["samples"]
        assert max(record["seconds"] for record in records) <= 8 + 1e-6


def test_partial_work_is_the_beginning_of_the_whole(tmp_path: Path) -> None:
    """Augmented images: a client with fewer steps does the first ones of the whole; on every engine."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 80)
    x = (rng.integers(0, 80, (80, 3, 24, 24)) + 80 * y[:, None, None, None]).astype(np.uint8)
    settings = {
        **BASE, "clients": 8, "max_rounds": 2, "model.name": "gn-lenet", "data.augment": "crop-flip-cutout",
        "federation.batch_size": 4, "federation.deadline": 4, "federation.straggler_policy": "partial",
        "devices.trace": "fixed", "devices.compute_ms": 80,
    }  # fmt: skip
    runs = [
        cpfl.run("digits", train=(x, y), public=x[:20], out=tmp_path / e, engine=e, device="cpu", settings=settings)
        for e in ALL
    ]
    for run in runs[1:]:
        assert_equal(runs[0], run)


def test_squared_losses_are_those_of_all_samples() -> None:
    """With a rate of almost nothing, every sample's loss is that of the start: known without any engine."""
    experiment = cpfl.settings.experiment_file.with_settings(
        cpfl.Experiment(cohorts=2, clients=6, max_rounds=1, precision="float64"),
        {"federation.selection": "oort", "federation.participants": 3, "federation.lr": 1e-12},  # all of a cohort
    )
    task = build_task(experiment, [], Given())
    module = task.build().double()
    module.load_state_dict(task.start)
    data = task.data
    for make in (ReferenceEngine, LaneEngine, lambda p, _: WorkerEngine(p, 2)):
        sessions, seen = open_sessions(task), dict[int, float | None]()
        for session in sessions:
            closing = session.close_round

            def close(outcome: Any, closing: Any = closing, seen: dict[int, Any] = seen) -> ClosedRound:
                seen.update((r.client, r.squared_losses) for r in outcome.results)
                return closing(outcome)  # type: ignore[no-any-return]

            session.close_round = close  # type: ignore[method-assign]
        make(task, torch.device("cpu")).train_cohorts(sessions, lambda session, closed: None)  # type: ignore[operator]
        assert len(seen) == 6
        for client, squared_losses in seen.items():
            rows = data.clients[client].training
            with torch.no_grad():
                logits = module(data.transform(torch.as_tensor(data.train.x[rows])))
                losses = torch.nn.functional.cross_entropy(
                    logits, torch.as_tensor(data.train.y)[rows], reduction="none"
                )
            assert squared_losses == pytest.approx(float(losses.square().sum()), rel=1e-6)


@pytest.mark.parametrize("engine", ["reference", "workers"])
@pytest.mark.parametrize("case", ["oort", "power-of-choice", "refl", "stale", "fedbuff", "over-selection, crashes"])
def test_resumed_to_the_byte(case: str, engine: str, tmp_path: Path, interrupter: type[Interrupter]) -> None:
    settings = {**CASES[case], "clients": 24, "cohorts": 2, "max_rounds": 6, "distillation.epochs": 1}
    settings |= {"data.train_limit": 900, "data.public_limit": 200, "checkpoint_seconds": 0}
    whole = cpfl.run("digits", out=tmp_path / "whole", engine=engine, device="cpu", settings=settings)
    path = tmp_path / "broken"
    with pytest.raises(interrupter.Enough):
        cpfl.run("digits", out=path, engine=engine, device="cpu", settings=settings, callback=interrupter(7))
    cpfl.resume(path, engine=engine, device="cpu")
    for name in ("rounds", "models"):
        for file in (whole.path / name).iterdir():
            assert (path / name / file.name).read_bytes() == file.read_bytes(), file.name


def test_lanes_wait_for_what_a_selection_needs() -> None:
    """A round that cannot be known ahead is opened when the last is closed, and never begun twice."""
    experiment = cpfl.settings.experiment_file.with_settings(
        cpfl.Experiment(cohorts=2, clients=10, max_rounds=5), {"federation.selection": "oort", **FEW}
    )
    task = build_task(experiment, [], Given())
    seen: list[tuple[int, int]] = []

    def on_round(session: Session, closed: ClosedRound) -> None:
        seen.append((session.cohort, closed.record.round))

    LaneEngine(task, torch.device("cpu")).train_cohorts(open_sessions(task), on_round)
    assert sorted(seen) == [(cohort, round) for cohort in range(2) for round in range(1, 6)]
