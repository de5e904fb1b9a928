"""Workers train what the reference engine trains, and the same on one core as on many."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.test_lanes import BASE, CASES, assert_equal, augmented_run
from tests.processes import PYTHON, Program
from torch import nn

import cpfl
from cpfl.engines.workers import WorkerEngine
from cpfl.errors import DivergedError, ModelError
from cpfl.federation.session import ClosedRound, Session
from cpfl.method import open_sessions
from cpfl.task.task import build_task


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_reference(case: str, tmp_path: Path) -> None:
    runs = [
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | CASES[case])
        for engine in ("reference", "workers")
    ]
    assert runs[1].summary["engine"] == "workers"
    assert_equal(*runs)


class Odd(nn.Module):
    """Statistics of batches, random numbers, two names for one weight, a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(64, 10)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(x.flatten(1)))
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))  # type: ignore[no-any-return]


def test_equal_for_an_odd_model(tmp_path: Path) -> None:
    settings = BASE | {"clients": 10, "max_rounds": 3, "federation.batch_size": 16, "federation.local_steps": 2}
    runs = [
        cpfl.run("digits", model=Odd, out=tmp_path / engine, engine=engine, device="cpu", settings=settings)
        for engine in ("reference", "workers")
    ]
    assert_equal(*runs)


@pytest.mark.parametrize("validation", [False, True])
def test_equal_on_augmented_images(validation: bool, tmp_path: Path) -> None:
    assert_equal(*(augmented_run(engine, validation, tmp_path) for engine in ("reference", "workers")))


def lines(workers: int, **settings: Any) -> list[tuple[int, int, float, float | None]]:
    """The records of a small task's sessions, in cohort order."""
    experiment = cpfl.settings.experiment_file.with_settings(
        cpfl.Experiment(cohorts=3, clients=12, max_rounds=4, precision="float32"), settings
    )
    task = build_task(experiment, [], cpfl.data.federated.Given())
    seen = []

    def on_round(session: Session, closed: ClosedRound) -> None:
        record = closed.record
        seen.append((record.cohort, record.round, record.loss, record.validation))

    WorkerEngine(task, workers).train_cohorts(open_sessions(task), on_round)
    return sorted(seen, key=lambda line: line[:2])


def test_any_number_of_workers_gives_the_same_bits() -> None:
    one = lines(1)
    assert len(one) == 12
    assert lines(2) == one
    assert lines(5) == one


def test_bf16_is_another_arithmetic() -> None:
    exact, short = lines(2), lines(2, precision="bf16")
    assert short != exact
    assert [line[2] for line in short] == pytest.approx([line[2] for line in exact], rel=0.05)


def test_a_client_that_diverges_is_named() -> None:
    with pytest.raises(DivergedError, match="cohort"):
        lines(2, **{"federation.lr": 1e30})


class NeedsTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) % 20:
            raise ValueError("only whole batches")
        return self.out(x.flatten(1))  # type: ignore[no-any-return]


def test_a_model_that_cannot_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="only whole batches"):
        cpfl.run("digits", model=NeedsTwo, out=tmp_path / "run", engine="workers", device="cpu")


SLOW = """
import sys, cpfl
cpfl.run("digits", out=sys.argv[1], engine="workers", device="cpu", settings={"max_rounds": 5000,
    "stopping.rule": "rounds", "stopping.rounds": 5000, "federation.local_epochs": 2})
"""


def start(path: Path) -> tuple[Program, list[int]]:
    """A long run, and its workers' process numbers."""
    main = Program([SLOW, path], path.parent, os.environ, PYTHON)
    main.until(lambda: any((path / "rounds").glob("*.jsonl")))
    children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
    return main, [int(child) for child in children]


def wait_for_the_end_of(processes: list[int]) -> None:
    while any(runs(process) for process in processes):
        time.sleep(0.05)


def runs(process: int) -> bool:
    """Whether it exists, and not only because nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
class TestProcesses:
    def test_workers_end_with_a_killed_main_process(self, tmp_path: Path) -> None:
        main, workers = start(tmp_path / "run")
        assert len(workers) >= 2
        main.kill()
        main.communicate()
        wait_for_the_end_of(workers)

    def test_a_killed_worker_is_told_in_one_sentence(self, tmp_path: Path) -> None:
        main, workers = start(tmp_path / "run")
        os.kill(workers[0], signal.SIGKILL)
        assert main.wait() != 0
        _, errors = main.communicate()
        assert "a worker process ended unasked (exit code -9)" in errors
        wait_for_the_end_of(workers)
