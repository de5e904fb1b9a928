"""The same experiment always gives the same bytes: seeds, orders of cohorts, other processes, locks."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from small_runs import Unbroken
from torch import nn

from cpfl import api, method
from cpfl.data.given import Given
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import RunFolderError
from cpfl.federation.session import Session
from cpfl.reports import tables
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import experiment_file
from cpfl.task.task import Task, build_task

CPU = torch.device("cpu")
# Settings with every kind of random choice.
VARIED = {
    "federation.participation": 0.5,
    "clients": 9,
    "federation.local_steps": 2,
    "stopping.window": 2,
    "distillation.weights": "uniform",
}


@pytest.mark.parametrize("settings", [{}, VARIED, {"precision": "float64"}])
def test_same_seed_twice(settings: dict[str, object], tmp_path: Path, unbroken: Unbroken) -> None:
    chosen = small_runs.settings_with(settings)
    again = api.run("digits", settings=chosen, out=tmp_path / "again", device="cpu").path
    assert small_runs.differing(again, unbroken(**settings)) == []


def test_another_seed_differs(unbroken: Unbroken) -> None:
    differing = small_runs.differing(unbroken(), unbroken(seed=91))
    assert {"models/start.safetensors", "models/global.safetensors", "rounds/cohort-0000.jsonl"} <= set(differing)


def test_another_process_with_other_global_seeds(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    torch.manual_seed(1234567)
    np.random.seed(7654321)
    random.seed(3)
    api.run("digits", settings=small_runs.SETTINGS, out=path, device="cpu")
    assert small_runs.differing(path, unbroken()) == []
    other = small_runs.cpfl(*small_runs.run_words(tmp_path / "other", {}))
    assert other.returncode == 0, other.stderr
    assert small_runs.differing(tmp_path / "other", unbroken()) == []


class WithDropout(nn.Sequential):
    """A model that draws random numbers while it trains."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))


def test_a_model_with_dropout(tmp_path: Path) -> None:
    """Users' models draw from torch's global generator; their runs must still be repeatable."""
    outcomes = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        chosen = {key: value for key, value in small_runs.SETTINGS.items() if not key.startswith("model.")}
        api.run("digits", model=WithDropout, settings=chosen, out=tmp_path / str(seed), device="cpu")
        outcomes.append(tmp_path / str(seed))
    assert small_runs.differing(*outcomes) == []


def test_a_model_with_dropout_resumed(tmp_path: Path) -> None:
    chosen = {key: value for key, value in small_runs.SETTINGS.items() if not key.startswith("model.")}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    api.run("digits", model=WithDropout, settings=chosen, out=whole, device="cpu")
    shutil.copytree(whole, killed)
    (killed / "summary.json").unlink()
    for newest in killed.glob("checkpoints/*-round-000005.safetensors"):
        newest.unlink()
    api.resume(killed, model=WithDropout, device="cpu")
    assert small_runs.differing(whole, killed) == []


# Orders in which cohorts may advance: which of the active sessions is next.


def round_robin(active: list[Session]) -> Session:
    return min(active, key=lambda s: (s.round, s.cohort))


def reversed_robin(active: list[Session]) -> Session:
    return min(active, key=lambda s: (s.round, -s.cohort))


def one_after_the_other(active: list[Session]) -> Session:
    return active[0]


def last_first(active: list[Session]) -> Session:
    return active[-1]


def at_random(active: list[Session]) -> Session:
    return DICE.choice(active)


DICE = random.Random(11)


@pytest.fixture(scope="module")
def task() -> Task:
    experiment = experiment_file.with_settings(
        experiment_file.load("digits"), small_runs.SETTINGS | VARIED | {"cohorts": 4}
    )
    return build_task(experiment, [], Given())


@pytest.mark.parametrize("pick", [round_robin, reversed_robin, one_after_the_other, last_first, at_random])
def test_the_order_of_cohorts_changes_nothing(pick: Callable[[list[Session]], Session], task: Task) -> None:
    expected, sessions = method.open_sessions(task), method.open_sessions(task)
    lines: dict[int, list[object]] = {session.cohort: [] for session in sessions}
    ReferenceEngine(task, CPU).train_cohorts(
        expected, lambda session, closed: lines[session.cohort].append(closed.record)
    )
    engine = ReferenceEngine(task, CPU)
    found: dict[int, list[object]] = {session.cohort: [] for session in sessions}
    while active := [session for session in sessions if not session.stopped]:
        session = pick(active)
        found[session.cohort].append(session.close_round(engine.do(session.open_round())).record)
    assert found == lines
    for one, other in zip(sessions, expected, strict=True):
        for name, value in other.teacher().items():
            assert torch.equal(one.teacher()[name], value)


def test_opened_twice_and_interleaved(task: Task) -> None:
    """Opening a round changes nothing: lost work can be requested again."""
    engine = ReferenceEngine(task, CPU)
    one, other = method.open_sessions(task)[0], method.open_sessions(task)[1]
    request = one.open_round()
    engine.do(other.open_round())
    again = one.open_round()
    assert (request.round, request.participants) == (again.round, again.participants)
    first, second = engine.do(request), engine.do(again)
    assert first.results == second.results
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)


def written(path: Path) -> list[list[dict[str, Any]]]:
    return [records.read(path / "rounds" / f"cohort-{cohort:04d}.jsonl") for cohort in range(3)]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that another process trains."""
    path = tmp_path_factory.mktemp("training") / "run"
    settings = {"max_rounds": 100_000, "stopping.rule": "rounds", "stopping.rounds": 100_000, "snapshots": "100s"}
    process = small_runs.start(*small_runs.run_words(path, settings | {"checkpoint_seconds": 0.2}))
    try:
        while not all(len(lines) >= 50 and lines[-1]["clock"] > 100 for lines in written(path)):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        yield path
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.kill()
        process.communicate()


def test_only_one_process_trains(training: Path) -> None:
    refused = small_runs.cpfl("resume", training)
    assert refused.returncode == 2
    assert "being trained by another process" in small_runs.one_sentence(refused.stderr)
    with pytest.raises(RunFolderError, match="being trained by another process"):
        api.resume(training, device="cpu")
    with pytest.raises(RunFolderError, match="not an empty folder"):
        api.run("digits", out=training, device="cpu")


def test_readable_while_it_trains(training: Path) -> None:
    folder = RunFolder.open(training)
    seen = 0
    for _ in range(30):
        lines = [line for cohort in range(3) for line in records.read(folder.rounds(cohort))]
        row = tables.overview(training)[0]
        assert row["state"] == "0 of 3 cohorts stopped"
        assert seen <= len(lines) <= row["rounds"]
        seen = len(lines)
    assert api.load_run(training).summary == {}
    shown = small_runs.cpfl("list", training.parent, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "0 of 3 cohorts stopped" in shown.stdout


def test_distilled_while_it_trains(training: Path, tmp_path: Path, unbroken: Unbroken) -> None:
    """A distillation of models at a given time does not depend on when it is made."""
    at = "100s"
    early = api.distill(training, at=at, name="early", device="cpu")
    with pytest.raises(RunFolderError, match="does not exist yet"):
        api.distill(training, at="9999h", device="cpu")
    with pytest.raises(RunFolderError, match="0 of the 3 cohorts"):
        api.distill(training, device="cpu")
    late = api.distill(training, at=at, name="late", device="cpu")
    measured = small_runs.MEASURED | {"path"}
    assert {k: v for k, v in early.items() if k not in measured} == {k: v for k, v in late.items() if k not in measured}
    models = [
        (training / "distillations" / name / "models" / "global.safetensors").read_bytes() for name in ("early", "late")
    ]
    assert models[0] == models[1]
    assert early["hours"] == pytest.approx(100 / 3600)


def test_a_folder_is_locked_once(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    one, other = RunFolder.open(path), RunFolder.open(path)
    one.lock()
    with pytest.raises(RunFolderError, match="another process"):
        other.lock()
    one.unlock()
    other.lock()
    other.unlock()


def test_forked_workers_do_not_hold_the_lock(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    folder, other = RunFolder.open(path), RunFolder.open(path)
    folder.lock()
    forking = multiprocessing.get_context("fork")
    started, end = forking.Event(), forking.Event()
    worker = forking.Process(target=lambda: (started.set(), end.wait()), daemon=True)
    worker.start()
    started.wait()
    try:
        folder.unlock()  # as the end of this process would
        other.lock()
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()
