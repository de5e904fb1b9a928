"""Runs of a sweep with one pool of workers: each is the run that it is alone, bit by bit, and ends as if it were."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import cpfl
from cpfl.engines.workers import shared
from cpfl.engines.workers.pool import WorkerPool
from cpfl.errors import SweepError
from cpfl.sweeps import RunProgress, SweepCallback, one_run

SMALL: dict[str, Any] = {"max_rounds": 4, "clients": 12, "data.public_limit": 200, "distillation.epochs": 2}
COMMON: dict[str, Any] = {"engine": "workers", "device": "cpu", "workers": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "n and splits": ({}, {"data.alpha": [0.1, 5], "data.train_limit": [300, 400]}),
    "algorithms": ({"federation.momentum": 0}, {"federation.client": ["sgd", "scaffold"]}),
    "evaluated together": ({"stopping.rule": "joint", "stopping.eval_interval": 2}, {"federation.lr": [0.05, 0.1]}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[WorkerPool]:
    """Every pool that a sweep shares."""
    pools: list[WorkerPool] = []

    class Kept(WorkerPool):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            pools.append(self)

    monkeypatch.setattr(shared, "WorkerPool", Kept)
    monkeypatch.setattr(shared, "FULL", 1000)  # all runs at once
    return pools


def check_alone(runs: list[cpfl.Run], out: Path, **common: Any) -> None:
    for run in runs:
        other = cpfl.run(run.experiment, out=out / run.path.name, **COMMON | {"workers": 1} | common)
        assert run.rounds == other.rounds
        assert run.summary["model_checksum"] == other.summary["model_checksum"]
        assert run.summary["engine"] == "workers"


@pytest.mark.parametrize("case", CASES)
def test_every_run_is_the_one_that_it_is_alone(case: str, made: list[WorkerPool], tmp_path: Path) -> None:
    settings, over = CASES[case]
    runs = cpfl.sweep("digits", cohorts=[1, 3], settings=SMALL | settings, over=over, out=tmp_path / "s", **COMMON)
    assert len(made) == 1
    check_alone([runs[0], runs[-1], runs[1]], tmp_path)


class Dropping(nn.Sequential):
    """Its student draws random numbers at every step."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))


def test_students_that_draw_random_numbers(tmp_path: Path) -> None:
    settings = SMALL | {"distillation.epochs": 5, "distillation.batch_size": 20}
    runs = cpfl.sweep(
        "digits", cohorts=[2, 3], seeds=[90, 91], settings=settings, model=Dropping, out=tmp_path / "s", **COMMON
    )
    check_alone(runs, tmp_path, model=Dropping)


def test_a_run_that_diverges_ends_alone(made: list[WorkerPool], tmp_path: Path) -> None:
    over = {"federation.lr": [0.05, 1e30, 0.1]}
    with pytest.raises(SweepError, match=r"1 of 3 runs") as caught:
        cpfl.sweep("digits", cohorts=[2], over=over, settings=SMALL, out=tmp_path / "s", **COMMON)
    assert [path.name for path in caught.value.failed] == ["n002-seed90-federation.lr-1e+30"]
    assert "lower federation.lr" in str(next(iter(caught.value.failed.values())))
    check_alone(caught.value.runs, tmp_path)
    assert len(made) == 1


class Killer(SweepCallback):
    """Kills the worker that has a job of the sweep's first run, once."""

    def __init__(self, made: list[WorkerPool]) -> None:
        self.made, self.killed = made, False

    def on_progress(self, progress: RunProgress) -> None:
        busy = [worker for worker in self.made[0]._workers if worker is not None and worker.jobs] if self.made else []
        if busy and not self.killed and progress.rounds >= 2:
            self.killed = True
            assert busy[0]._process.pid is not None
            os.kill(busy[0]._process.pid, signal.SIGKILL)


def test_the_runs_of_a_killed_worker_fail_and_resume(
    made: list[WorkerPool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(one_run, "INTERVAL_SECONDS", 0.0)
    callback = Killer(made)
    settings = SMALL | {"max_rounds": 6}
    with pytest.raises(SweepError) as caught:
        cpfl.sweep(
            "digits", cohorts=[1, 2], seeds=[90, 91], settings=settings, out=tmp_path / "s", callback=callback, **COMMON
        )
    assert callback.killed
    assert 1 <= len(caught.value.failed) <= 2  # a worker has two jobs at most
    assert all("a worker process ended unasked" in str(error) for error in caught.value.failed.values())
    runs = cpfl.sweep(tmp_path / "s", workers=2)
    assert len(runs) == 4
    check_alone(runs, tmp_path)


class Stopper(SweepCallback):
    """Ctrl-C in the midst of a run's training, or of its distillation."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_progress(self, progress: RunProgress) -> None:
        if progress.epoch >= self.epochs and (self.epochs or progress.rounds >= 3):
            raise KeyboardInterrupt


@pytest.mark.parametrize("epochs", [0, 1], ids=["in training", "in distillation"])
def test_an_interrupted_sweep_continues(
    epochs: int, made: list[WorkerPool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(one_run, "INTERVAL_SECONDS", 0.0)
    settings = SMALL | {"checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        cpfl.sweep(
            "digits", cohorts=[1, 3], settings=settings, seeds=[90, 91], out=tmp_path / "s",
            callback=Stopper(epochs), **COMMON,
        )  # fmt: skip
    assert not any(made[0]._workers)
    assert len(list((tmp_path / "s").glob("*/summary.json"))) < 4
    check_alone(cpfl.sweep(tmp_path / "s", workers=2), tmp_path)  # no folder is locked any more


def test_a_worker_that_is_older_than_a_run_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "FULL", 0)  # two at a time
    forks: list[int] = []
    fork = WorkerPool._fork

    def counted(pool: WorkerPool, number: int) -> Any:
        forks.append(number)
        return fork(pool, number)

    monkeypatch.setattr(WorkerPool, "_fork", counted)
    runs = cpfl.sweep("digits", cohorts=[2], seeds=[90, 91, 92, 93], settings=SMALL, out=tmp_path / "s", **COMMON)
    assert 2 < len(forks) <= 2 * 4  # once for each worker and run at most
    check_alone(runs[-1:], tmp_path)


def test_runs_with_models_by_cohort_are_made_one_after_the_other(made: list[WorkerPool], tmp_path: Path) -> None:
    told: list[str] = []

    class Told(SweepCallback):
        def on_message(self, text: str) -> None:
            told.append(text)

    settings = SMALL | {"model.by_cohort": {"1": "mlp"}, "max_rounds": 1}
    cpfl.sweep("digits", cohorts=[2, 3], settings=settings, out=tmp_path / "s", callback=Told(), **COMMON)
    assert made == []
    assert told == ["the runs are made one after the other, since they have models by cohort (model.by_cohort)"]
