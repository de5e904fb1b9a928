"""The stopping rule joint at meetings: what is evaluated, what it costs, when all stop, limits in traffic, kills."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from small_runs import Unbroken
from tests.engines.test_lanes import assert_equal
from tests.meetings.test_meeting_engines import BASE

import cpfl
from cpfl import api
from cpfl.data.given import Given
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.task.task import Task, build_task

MEET = {"meetings.rule": "mean", "meetings.interval": "2 rounds"}
JOINT = {"stopping.rule": "joint", "max_rounds": 14, "stopping.min_gain": 50, "stopping.eval_window": 4}
JOINT |= {"distillation.epochs": 1, "snapshots": ""}


def lines(path: Path, name: str) -> list[dict[str, Any]]:
    return records.read_sealed(path / f"{name}.jsonl", RunFolder.open(path).identity)


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def task_of(path: Path) -> Task:
    return build_task(RunFolder.open(path).experiment(), [], Given())


def test_one_model_is_evaluated_instead_of_n(unbroken: Unbroken) -> None:
    """By hand: the merged model on all validation samples; its price in CPU hours and client traffic is a third."""
    path, task = unbroken(**(JOINT | MEET)), task_of(unbroken(**(JOINT | MEET)))
    evaluated, met = lines(path, "evaluations"), lines(path, "meetings")
    assert [one["decision"] for one in evaluated] == ["continue"] * len(met) + ["stop"]
    assert [one["clock"] for one in met] == [one["clock"] for one in evaluated[:-1]]
    data, folder, module = task.data, RunFolder.open(path), task.build()
    held, _ = data.clients.held_out()
    assert data.train.y is not None
    for one, line in zip(met, evaluated, strict=False):
        module.load_state_dict(load_state(folder.meeting_model(one["meeting"])))
        with torch.no_grad():
            answers = module(data.transform(torch.as_tensor(data.train.x[held]))).argmax(1).numpy()
        assert line["accuracy"] == pytest.approx(100 * np.mean(answers == data.train.y[held]))
    apart = lines(unbroken(**(JOINT | {"stopping.eval_interval": 2})), "evaluations")
    n, size = 3, task.model_bytes
    evaluating = int(np.count_nonzero(data.clients.validation_sizes))
    assert evaluated[0]["cpu_seconds"] == pytest.approx(apart[0]["cpu_seconds"] / n)
    assert evaluated[0]["bytes"] == size * evaluating
    assert apart[0]["bytes"] == size * (evaluating * (n - 1) + n)  # of its own cohort's a client has the newest
    assert evaluated[0]["global_bytes"] == 0


def test_nobody_continues_from_the_last_evaluated_model(unbroken: Unbroken) -> None:
    """The cohorts' own models are the teachers; their mean is what was evaluated."""
    path = unbroken(**(JOINT | MEET))
    folder, evaluated = RunFolder.open(path), lines(path, "evaluations")
    states = [load_state(folder.teacher(cohort)) for cohort in range(3)]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    task = task_of(path)
    held, _ = task.data.clients.held_out()
    assert task.data.train.y is not None
    module = task.build()
    module.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    with torch.no_grad():
        answers = module(task.data.transform(torch.as_tensor(task.data.train.x[held]))).argmax(1).numpy()
    assert evaluated[-1]["accuracy"] == pytest.approx(100 * np.mean(answers == task.data.train.y[held]))
    assert summary(path)["hours"] == pytest.approx(evaluated[-1]["clock"] / 3600)
    # Nothing crosses the link between servers for the last evaluation but what the end sends anyway.
    size, met = task.model_bytes, lines(path, "meetings")
    assert summary(path)["global_gb"] * 1e9 == pytest.approx(sum(one["bytes"] for one in met) + 3 * size)
    later = api.distill(path, quorum=0.5, name="later", device="cpu")
    assert {one["stop"] for one in later["by_cohort"]} == {"joint"}


def test_the_gain_is_counted_per_hour(unbroken: Unbroken) -> None:
    evaluated = lines(unbroken(**(JOINT | MEET | {"stopping.gain_per": "hours"})), "evaluations")
    hours = np.log2([one["clock"] / 3600 for one in evaluated[-4:]])
    slope = np.polyfit(hours, [one["accuracy"] for one in evaluated[-4:]], 1)[0]
    assert evaluated[-1]["gain_per_doubling"] == pytest.approx(slope)


def test_halves_of_the_cohorts_agree(unbroken: Unbroken) -> None:
    """The other metric compares what the cohorts bring, for no traffic of its own."""
    path = unbroken(**(JOINT | MEET | {"stopping.metric": "public-agreement"}))
    for one in lines(path, "evaluations"):
        assert (one["bytes"], one["seconds"], one["loss"]) == (0, 0.0, None)
    assert lines(path, "meetings")


@pytest.mark.parametrize("case", ["2 rounds", "20s"])
def test_equal_on_all_engines(case: str, tmp_path: Path) -> None:
    changes = {"stopping.rule": "joint", "stopping.min_gain": 40, "meetings.interval": case, "max_rounds": 16}
    plain, *others = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=BASE | changes)
        for engine in ("reference", "workers", "lanes")
    )
    expected = lines(plain.path, "evaluations")
    assert expected[-1]["decision"] == "stop"
    for other in others:
        assert_equal(plain, other)
        for ours, theirs in zip(lines(other.path, "evaluations"), expected, strict=True):
            assert ours == {k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in theirs.items()}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"cohorts": 1},
        {"federation.participation": 0.5, "assignment.rule": "speed"},
        JOINT | {"stopping.min_gain": 0, "stopping.eval_interval": 3},
        JOINT | MEET | {"stopping.min_gain": 0},
        MEET | {"meetings.interval": "20s", "federation.server": "fedavgm", "meetings.server_state": "average"},
    ],
)
def test_traffic_is_not_exceeded(more: dict[str, Any], unbroken: Unbroken) -> None:
    """All of it counts: rounds, meetings, evaluations, and the models at the end. Nearly all of it is used."""
    limit = 0.0025
    budget = {} if "stopping.rule" in more else {"stopping.rule": "budget"}
    path = unbroken(**({"max_rounds": 500, "distillation.epochs": 1} | budget | more | {
        "max_rounds": 500, "stopping.max_traffic_gb": limit
    }))  # fmt: skip
    spent, size = summary(path)["comm_gb"], RunFolder.open(path).about()["model_bytes"]
    assert {one["stop"] for one in summary(path)["by_cohort"]} == {"traffic"}
    # Not used: less than a round of each cohort, and a meeting or an evaluation of all clients that no longer fits.
    assert limit - (2 * 6 + 6 * 3 + 4 * 3) * size / 1e9 < spent <= limit


@pytest.mark.parametrize(("k", "engine", "seconds"), [(60, "reference", 0), (45, "workers", 1000)])
def test_a_process_that_dies(k: int, engine: str, seconds: int, tmp_path: Path) -> None:
    path, chosen = tmp_path / "run", JOINT | MEET | {"checkpoint_seconds": seconds, "stopping.max_traffic_gb": 1}
    dead = small_runs.cpfl(*small_runs.run_words(path, chosen), "--engine", engine, driver=("kill", str(k)))
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    api.resume(path, device="cpu", workers=1)
    whole = tmp_path / "whole"
    api.run("digits", settings=small_runs.settings_with(chosen), out=whole, device="cpu", engine=engine, workers=1)
    assert small_runs.differing(path, whole) == []


@pytest.mark.parametrize("meetings", [1, 2])
def test_a_kill_between_evaluation_and_meeting(meetings: int, tmp_path: Path, unbroken: Unbroken) -> None:
    """Two evaluations are on disk, and one meeting or both; every cohort begins anew."""
    whole, path = unbroken(**(JOINT | MEET | {"checkpoint_seconds": 1000})), tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    for file in (*path.glob("checkpoints/*"), *path.glob("rounds/*")):
        file.unlink()
    for name, count in (("evaluations", 2), ("meetings", meetings)):
        kept = (path / f"{name}.jsonl").read_bytes().splitlines(keepends=True)[:count]
        (path / f"{name}.jsonl").write_bytes(b"".join(kept))
    api.resume(path, device="cpu")
    assert small_runs.differing(path, whole) == []
