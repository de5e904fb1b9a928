"""The same experiment always ends with the same bytes, whatever happens around it."""

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

from cpfl import api, experiment_file, method
from cpfl.data.federated import Given
from cpfl.engines.reference import ReferenceEngine
from cpfl.errors import RunFolderError
from cpfl.federation.session import Session
from cpfl.problem import Problem, prepare
from cpfl.report import tables
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

CPU = torch.device("cpu")
# In every way a run can draw by chance.
VARIED = {
    "federation.participation": 0.5,
    "clients": 9,
    "federation.local_steps": 2,
    "stopping.window": 2,
    "distillation.weights": "uniform",
}


@pytest.mark.parametrize("settings", [{}, VARIED, {"precision": "float64"}])
def test_same_seed_twice(settings: dict[str, object], tmp_path: Path, unbroken: Unbroken) -> None:
    chosen = small_runs.SETTINGS | settings
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
    other = small_runs.start_cold(*small_runs.run_words(tmp_path / "other", {}))
    _, trouble = other.communicate(timeout=240)
    assert other.returncode == 0, trouble
    assert small_runs.differing(tmp_path / "other", unbroken()) == []


class Drops(nn.Sequential):
    """A model that draws by chance while it trains."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10))


def test_a_model_with_dropout(tmp_path: Path) -> None:
    """Users' models draw from torch's global generator: their runs must be repeatable all the same."""
    outcomes = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        chosen = {key: value for key, value in small_runs.SETTINGS.items() if not key.startswith("model.")}
        api.run("digits", model=Drops, settings=chosen, out=tmp_path / str(seed), device="cpu")
        outcomes.append(tmp_path / str(seed))
    assert small_runs.differing(*outcomes) == []


def test_a_model_with_dropout_resumed(tmp_path: Path) -> None:
    chosen = {key: value for key, value in small_runs.SETTINGS.items() if not key.startswith("model.")}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    api.run("digits", model=Drops, settings=chosen, out=whole, device="cpu")
    shutil.copytree(whole, killed)
    (killed / "summary.json").unlink()
    for newest in killed.glob("checkpoints/*-round-000005.safetensors"):
        newest.unlink()
    api.resume(killed, model=Drops, device="cpu")
    assert small_runs.differing(whole, killed) == []


# Orders in which cohorts may advance: which of those that go on is next.


def round_robin(going: list[Session]) -> Session:
    return min(going, key=lambda s: (s.round, s.cohort))


def reversed_robin(going: list[Session]) -> Session:
    return min(going, key=lambda s: (s.round, -s.cohort))


def one_after_the_other(going: list[Session]) -> Session:
    return going[0]


def last_first(going: list[Session]) -> Session:
    return going[-1]


def at_random(going: list[Session]) -> Session:
    return DICE.choice(going)


DICE = random.Random(11)


@pytest.fixture(scope="module")
def problem() -> Problem:
    experiment = experiment_file.with_settings(
        experiment_file.load("digits"), small_runs.SETTINGS | VARIED | {"cohorts": 4}
    )
    return prepare(experiment, [], Given())


@pytest.mark.parametrize("pick", [round_robin, reversed_robin, one_after_the_other, last_first, at_random])
def test_whatever_the_order(pick: Callable[[list[Session]], Session], problem: Problem) -> None:
    expected, sessions = method.plan(problem), method.plan(problem)
    lines: dict[int, list[object]] = {session.cohort: [] for session in sessions}
    ReferenceEngine(problem, CPU).federate(
        expected, lambda session, closed: lines[session.cohort].append(closed.record)
    )
    engine = ReferenceEngine(problem, CPU)
    found: dict[int, list[object]] = {session.cohort: [] for session in sessions}
    while going := [session for session in sessions if not session.stopped]:
        session = pick(going)
        found[session.cohort].append(session.close_round(engine.do(session.open_round())).record)
    assert found == lines
    for one, other in zip(sessions, expected, strict=True):
        for name, value in other.teacher().items():
            assert torch.equal(one.teacher()[name], value)


def test_opened_twice_and_interleaved(problem: Problem) -> None:
    """Opening a round changes nothing: work that was lost can be asked for again."""
    engine = ReferenceEngine(problem, CPU)
    one, other = method.plan(problem)[0], method.plan(problem)[1]
    work = one.open_round()
    engine.do(other.open_round())
    again = one.open_round()
    assert (work.round, work.participants) == (again.round, again.participants)
    first, second = engine.do(work), engine.do(again)
    assert first.results == second.results
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)


def written(path: Path) -> list[list[dict[str, Any]]]:
    return [records.read(path / "rounds" / f"cohort-{cohort:04d}.jsonl") for cohort in range(3)]


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on in another process."""
    path = tmp_path_factory.mktemp("living") / "run"
    settings = {"max_rounds": 100_000, "stopping.rule": "rounds", "stopping.rounds": 100_000, "snapshots": "100s"}
    process = small_runs.start(*small_runs.run_words(path, settings | {"checkpoint_seconds": 0.2}))
    try:
        until = time.monotonic() + 200
        while not all(len(lines) >= 50 and lines[-1]["clock"] > 100 for lines in written(path)):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.02)
        yield path
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.kill()
        process.communicate()


def test_only_one_process_trains(living: Path) -> None:
    refused = small_runs.cpfl("resume", living)
    assert refused.returncode == 2
    assert "being trained by another process" in small_runs.one_sentence(refused.stderr)
    with pytest.raises(RunFolderError, match="being trained by another process"):
        api.resume(living, device="cpu")
    with pytest.raises(RunFolderError, match="not an empty folder"):
        api.run("digits", out=living, device="cpu")


def test_readable_while_it_goes_on(living: Path) -> None:
    folder = RunFolder.open(living)
    seen = 0
    for _ in range(30):
        lines = [line for cohort in range(3) for line in records.read(folder.rounds(cohort))]
        row = tables.overview(tables.find_runs(living))[0]
        assert row["state"] == "0 of 3 cohorts stopped"
        assert seen <= len(lines) <= row["rounds"]
        seen = len(lines)
    assert api.load_run(living).summary == {}
    shown = small_runs.cpfl("list", living.parent, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "0 of 3 cohorts stopped" in shown.stdout


def test_distilled_while_it_goes_on(living: Path, tmp_path: Path, unbroken: Unbroken) -> None:
    """What --at answers of a living run is what it answers of a dead one."""
    at = "100s"
    early = api.distill(living, at=at, name="early", device="cpu")
    with pytest.raises(RunFolderError, match="not there yet"):
        api.distill(living, at="9999h", device="cpu")
    with pytest.raises(RunFolderError, match="0 of the 3 cohorts"):
        api.distill(living, device="cpu")
    late = api.distill(living, at=at, name="late", device="cpu")
    measured = small_runs.MEASURED | {"path"}
    assert {k: v for k, v in early.items() if k not in measured} == {k: v for k, v in late.items() if k not in measured}
    models = [
        (living / "distillations" / name / "models" / "global.safetensors").read_bytes() for name in ("early", "late")
    ]
    assert models[0] == models[1]
    assert early["hours"] == pytest.approx(100 / 3600)


def test_the_lock_goes_with_the_process(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    one, other = RunFolder.open(path), RunFolder.open(path)
    one.lock()
    with pytest.raises(RunFolderError, match="another process"):
        other.lock()
    one.unlock()
    other.lock()
    other.unlock()


def test_the_lock_does_not_stay_with_forked_workers(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    folder, other = RunFolder.open(path), RunFolder.open(path)
    folder.lock()
    forking = multiprocessing.get_context("fork")
    there, end = forking.Event(), forking.Event()
    worker = forking.Process(target=lambda: (there.set(), end.wait(60)), daemon=True)
    worker.start()
    assert there.wait(60)
    try:
        folder.unlock()  # as the end of this process would
        other.lock()
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()
