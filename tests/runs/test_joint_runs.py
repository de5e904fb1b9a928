"""Whole runs with the stopping rule joint: costs by hand, limits, kills at any moment, later distillations, reports."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import small_runs
import torch
from small_runs import Unbroken

import cpfl
from cpfl import api
from cpfl.data.given import Given
from cpfl.distillation.evaluation import EVALUATORS
from cpfl.errors import RunFolderError
from cpfl.federation import stopping
from cpfl.reports import tables
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.task.task import Task, build_task

if TYPE_CHECKING:
    from conftest import Command

# Every evaluation from the fifth on stops the run, unless the gain grows: six phases of two rounds here.
JOINT = {
    "max_rounds": 30,
    "stopping.rule": "joint",
    "stopping.eval_interval": 2,
    "stopping.min_gain": 1000,
    "snapshots": "10s",
    "distillation.epochs": 1,
}
FIXED = {"devices.trace": "fixed", "devices.compute_ms": 50, "devices.network_kbps": 6000}


def rounds(path: Path) -> list[list[dict[str, Any]]]:
    folder = RunFolder.open(path)
    return [records.read(folder.rounds(cohort)) for cohort in range(len(folder.about()["cohorts"]))]


def evaluations(path: Path) -> list[dict[str, Any]]:
    return records.read(path / "evaluations.jsonl")


def task_of(path: Path) -> Task:
    return build_task(RunFolder.open(path).experiment(), [], Given())


@pytest.mark.parametrize(
    ("metric", "cohorts", "settings", "lacking"),
    [
        ("ensemble-accuracy", 3, {}, 2),
        ("ensemble-accuracy", 1, {}, 0),
        ("ensemble-accuracy", 6, {"stopping.keep": "ema"}, 5),  # a client that trains alone has its own average
        ("ensemble-accuracy", 3, {"stopping.keep": "ema"}, 3),
        ("ensemble-accuracy", 1, {"stopping.keep": "ema"}, 1),
        ("ensemble-accuracy", 3, {"federation.participation": 0.5}, 3),  # others lack the newest model
        ("public-agreement", 3, {}, 0),
    ],
)
def test_costs_by_hand(metric: str, cohorts: int, settings: dict[str, Any], lacking: int, unbroken: Unbroken) -> None:
    """`lacking` models are sent to each client, and those of several cohorts to the global server before."""
    path = unbroken(**(JOINT | FIXED | settings | {"stopping.metric": metric, "cohorts": cohorts}))
    task, lines, evaluated = task_of(path), rounds(path), evaluations(path)
    size, held = task.model_bytes, task.data.clients.validation_sizes
    if metric == "ensemble-accuracy":
        seconds = max(cohorts * h * 0.05 + lacking * size / (6000 * 128) for h in held if h)
        cpu, sent = cohorts * held.sum() * 0.05, lacking * size * np.count_nonzero(held)
        sent += cohorts * size if cohorts > 1 else 0
    else:
        seconds, cpu, sent = 0.0, 0.0, cohorts * size
    before = 0.0
    for phase, one in enumerate(evaluated, 1):
        assert (one["phase"], one["round"], one["cohorts"]) == (phase, 2 * phase, list(range(cohorts)))
        durations = [[r["seconds"] for r in cohort[2 * phase - 2 : 2 * phase]] for cohort in lines]
        assert one["clock"] == pytest.approx(before + max(map(sum, durations)) + seconds)
        for cohort, took in zip(lines, durations, strict=True):  # all begin a phase together, each ends it by itself
            assert [r["clock"] for r in cohort[2 * phase - 2 : 2 * phase]] == pytest.approx(
                [before + took[0], before + sum(took)]
            )
        trained = sum(r["cpu_seconds"] for cohort in lines for r in cohort[: 2 * phase])
        assert one["cpu_hours"] == pytest.approx((trained + phase * cpu) / 3600)
        assert (one["cpu_seconds"], one["bytes"], one["seconds"]) == (
            pytest.approx(cpu),
            sent,
            pytest.approx(seconds),
        )
        before = one["clock"]
    summary = json.loads((path / "summary.json").read_text())
    every = [r for cohort in lines for r in cohort]
    assert summary["hours"] == pytest.approx(before / 3600)
    assert summary["cpu_hours"] == pytest.approx((sum(r["cpu_seconds"] for r in every) + len(evaluated) * cpu) / 3600)
    traffic = sum(r["bytes"] for r in every) + len(evaluated) * sent + cohorts * size
    assert summary["comm_gb"] == pytest.approx(traffic / 1e9)
    assert {a["stop"] for a in summary["by_cohort"]} == {"joint"}
    assert all(a["hours"] == pytest.approx(before / 3600) for a in summary["by_cohort"])


def test_decisions_are_those_of_the_rule(unbroken: Unbroken) -> None:
    evaluated = evaluations(unbroken(**JOINT))
    points = [(one["cpu_hours"], one["accuracy"]) for one in evaluated]
    known = [points[:count] for count in range(1, len(points) + 1)]  # at each evaluation
    assert [stopping.converged(each, 1000, 6) for each in known] == [False] * (len(known) - 1) + [True]
    assert [one["gain_per_doubling"] for one in evaluated] == [stopping.gain_per_doubling(each, 6) for each in known]
    assert [one["decision"] for one in evaluated] == ["continue"] * (len(known) - 1) + ["stop"]


def test_the_evaluated_models_are_the_teachers(unbroken: Unbroken) -> None:
    """The last evaluation of the ensemble, computed by hand on the clients' samples."""
    path = unbroken(**(JOINT | {"distillation.aggregation": "probabilities", "stopping.window": 1}))
    task, evaluated = task_of(path), evaluations(path)
    data = task.data
    held = np.concatenate([data.clients[c].validation for c in range(6)])
    x, y = data.train.x[held].reshape(len(held), -1) / 255.0, data.train.y[held]
    counts = np.array([data.counts[members].sum(axis=0) for members in task.cohorts], float)
    total = 0.0
    for cohort, own in enumerate(counts):
        state = files.load_tensors(path / "models" / f"cohort-{cohort:04d}.safetensors")[0]
        weights = [state[name].double().numpy() for name in state]
        first, second = (w for w in weights if w.ndim == 2)
        if len(second) != 10:
            first, second = second, first
        bias = {len(w): w for w in weights if w.ndim == 1}
        logits = np.maximum(x @ first.T + bias[len(first)], 0) @ second.T + bias[10]
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        everyone = counts.sum(axis=0)
        total = total + probabilities * np.where(everyone > 0, own / np.maximum(everyone, 1), 1 / 3)
    total /= total.sum(axis=1, keepdims=True)
    assert evaluated[-1]["accuracy"] == pytest.approx(100 * np.mean(total.argmax(axis=1) == y))
    assert evaluated[-1]["loss"] == pytest.approx(-np.log(total[np.arange(len(y)), y]).mean(), rel=1e-4)


def test_a_fraction_of_the_clients_evaluates(unbroken: Unbroken) -> None:
    all_, half = (evaluations(unbroken(**(JOINT | {"stopping.client_fraction": share}))) for share in (1.0, 0.5))
    task = task_of(unbroken(**JOINT))
    able, upload = int(np.count_nonzero(task.data.clients.validation_sizes)), 3 * task.model_bytes
    assert (half[0]["bytes"] - upload) * able == (all_[0]["bytes"] - upload) * math.ceil(able / 2)
    assert half[0]["cpu_seconds"] < all_[0]["cpu_seconds"]
    assert len({(one["cpu_seconds"], one["bytes"]) for one in half}) == 1  # always the same clients


# Limits.


def test_hours_that_end_within_a_phase(unbroken: Unbroken) -> None:
    """The slowest cohort stops in the middle of the second phase. The others are evaluated once more, together with its
    last model and no earlier than its clock, and all end in time."""
    # This metric takes no time.
    chosen = JOINT | {"seed": 1, "stopping.eval_interval": 4, "stopping.metric": "public-agreement"}
    free = rounds(unbroken(**chosen))
    ends = [cohort[7]["clock"] for cohort in free]
    slow = ends.index(max(ends))
    limit = free[slow][6]["clock"] + 0.5  # enough for seven rounds of it, and for the second phase of the others
    assert all(end < limit for cohort, end in enumerate(ends) if cohort != slow)
    path = unbroken(**(chosen | {"stopping.max_hours": limit / 3600}))
    lines, evaluated, summary = rounds(path), evaluations(path), json.loads((path / "summary.json").read_text())
    assert {cohort[-1]["stop"] for cohort in lines} == {"hours"}
    assert lines[slow][-1]["round"] == 7
    others = [cohort for cohort in range(3) if cohort != slow]
    assert [one["cohorts"] for one in evaluated[:2]] == [[0, 1, 2], others]
    assert evaluated[1]["clock"] == lines[slow][-1]["clock"]
    assert summary["hours"] <= limit / 3600
    assert summary["teachers"] == [0, 1, 2]


def test_stopped_cohorts_are_evaluated_with_their_last_model(unbroken: Unbroken) -> None:
    """The evaluation repeated from files: the last model of the stopped cohort, and snapshots of the others."""
    chosen = JOINT | {"seed": 1, "stopping.eval_interval": 4, "snapshots": "4 rounds"}
    free = rounds(unbroken(**chosen))
    ends = [cohort[7]["clock"] for cohort in free]
    slow = ends.index(max(ends))
    seventh = free[slow][6]  # no time for an eighth round, but for an evaluation
    path = unbroken(**(chosen | {"stopping.max_hours": (seventh["clock"] + 0.9 * seventh["seconds"]) / 3600}))
    task, folder, evaluated = task_of(path), RunFolder.open(path), evaluations(path)
    assert slow not in evaluated[1]["cohorts"]
    assert rounds(path)[slow][-1]["round"] == 7
    states = [
        load_state(folder.path / "models" / f"cohort-{cohort:04d}.safetensors")
        if cohort == slow
        else load_state(next(folder.path.glob(f"snapshots/*{cohort:04d}*round-000008*")))
        for cohort in range(3)
    ]
    evaluator = EVALUATORS["ensemble-accuracy"](task, task.experiment.distillation, torch.device("cpu"))
    assert evaluated[1]["loss"] == pytest.approx(evaluator.evaluate(states)[1], rel=1e-6)


@pytest.mark.parametrize("cpu_hours", [0.02, 0.1, 0.3])  # the first is spent before a phase ends
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_cpu_hours_are_not_exceeded(cpu_hours: float, participation: float, unbroken: Unbroken) -> None:
    """Almost all of them are spent, and every cohort trains the same number of rounds, whatever they cost it."""
    limit = {
        "stopping.max_cpu_hours": cpu_hours,
        "stopping.min_gain": 0,
        "max_rounds": 500,
        "stopping.eval_interval": 4,
    }
    path = unbroken(**(JOINT | limit | {"federation.participation": participation, "cohorts": 2}))
    summary, lines, evaluated = json.loads((path / "summary.json").read_text()), rounds(path), evaluations(path)
    assert {cohort[-1]["stop"] for cohort in lines} == {"cpu hours"}
    longest = sum(max(record["cpu_seconds"] for record in cohort) for cohort in lines) / 3600
    beyond = 0 if participation == 1 else longest  # a round is expected to cost what the last one did
    assert cpu_hours - 2 * longest < summary["cpu_hours"] <= cpu_hours + beyond
    numbers = [cohort[-1]["round"] for cohort in lines]
    assert max(numbers) - min(numbers) <= (1 if participation == 1 else 0.1 * max(numbers) + 1)
    assert all(one["cohorts"] == [0, 1] for one in evaluated)
    for one in evaluated[:-1]:  # the cost of the next one is kept back
        assert sum(one["cpu_budgets"]) + one["cpu_seconds"] == pytest.approx(cpu_hours * 3600)
    assert bool(evaluated) == (cpu_hours > 0.02)
    for one in evaluated[-1:]:  # no more will follow
        assert sum(one["cpu_budgets"]) == pytest.approx(cpu_hours * 3600)


def test_diverged_models_are_reported(cpfl_command: Command, tmp_path: Path) -> None:
    """Where no client validates, the evaluation is the first to notice it."""
    wild = {
        "federation.server": "fedavgm", "federation.server_args.lr": 1e38, "federation.participants": 1, "seed": 1,
        "stopping.eval_interval": 1, "data.validation_min_samples": 60, "cohorts": 2, "clients": 40,
        "data.train_limit": 0,
    }  # fmt: skip
    words = small_runs.run_words(tmp_path / "run", JOINT | wild)
    failed = cpfl_command(*words, "--engine", "reference")
    assert failed.code == 2
    assert "is no longer a number: lower federation.lr" in failed.err


def test_max_rounds_need_no_evaluation(unbroken: Unbroken) -> None:
    path = unbroken(**(JOINT | {"max_rounds": 5}))
    assert [one["round"] for one in evaluations(path)] == [2, 4]
    assert {cohort[-1]["stop"] for cohort in rounds(path)} == {"max rounds"}
    longer = unbroken(**(JOINT | {"max_rounds": 4}))
    assert [one["round"] for one in evaluations(longer)] == [2]  # no cohort waits for a second one


# Kills; test_every_operation.py has them at every operation.


SPARSE = {"checkpoint_seconds": 1000}  # checkpoints at stops only: a resume repeats many phases


@pytest.mark.parametrize(
    ("k", "settings", "engine"), [(60, {}, "reference"), (23, SPARSE, "workers"), (44, SPARSE, "reference")]
)
def test_a_process_that_dies(k: int, settings: dict[str, Any], engine: str, tmp_path: Path) -> None:
    path, chosen = tmp_path / "run", JOINT | settings
    dead = small_runs.cpfl(*small_runs.run_words(path, chosen), "--engine", engine, driver=("kill", str(k)))
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    api.resume(path, device="cpu", workers=1)
    whole = tmp_path / "whole"
    api.run("digits", settings=small_runs.settings_with(chosen), out=whole, device="cpu", engine=engine, workers=1)
    assert small_runs.differing(path, whole) == []


def test_an_incomplete_evaluation_is_repeated(tmp_path: Path, unbroken: Unbroken) -> None:
    path, whole = tmp_path / "run", unbroken(**(JOINT | SPARSE))
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    for name in ("checkpoints", "rounds"):
        for file in (path / name).iterdir():
            file.unlink()
    content = (path / "evaluations.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    (path / "evaluations.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    api.resume(path, device="cpu")
    assert small_runs.differing(path, whole) == []


def test_damaged_evaluations_are_refused(tmp_path: Path, unbroken: Unbroken) -> None:
    for content, words in ((b"", "lacks evaluations"), (b'{"phase":1}\n', "was changed")):
        path = tmp_path / str(len(content))
        shutil.copytree(unbroken(**JOINT), path)
        (path / "summary.json").unlink()
        for newest in path.glob("checkpoints/*-round-000012.safetensors"):  # each resumes from the phase before
            newest.unlink()
        (path / "evaluations.jsonl").write_bytes(content)
        with pytest.raises(RunFolderError, match=words):
            api.resume(path, device="cpu")


# Later distillations and reports.


def test_distilled_at_any_moment(tmp_path: Path, unbroken: Unbroken) -> None:
    """While a cohort waits, its newest model counts; all cohorts stop with the last evaluation."""
    path = tmp_path / "run"
    shutil.copytree(unbroken(**JOINT), path)
    evaluated, lines = evaluations(path), rounds(path)
    slowest = max(range(3), key=lambda c: lines[c][3]["clock"])
    moment = lines[slowest][3]["clock"] - 1e-3  # just before the second evaluation
    early = api.distill(path, at=f"{moment:.4f}s", name="early", device="cpu")
    assert early["rounds"] == 4 * 3 - 1
    assert early["hours"] == pytest.approx(moment / 3600, abs=1e-6)
    trained = sum(r["cpu_seconds"] for cohort in lines for r in cohort if r["clock"] <= moment)
    assert early["cpu_hours"] == pytest.approx((trained + evaluated[0]["cpu_seconds"]) / 3600)
    ended = evaluated[-1]["clock"]
    late = api.distill(path, at=f"{ended - 0.01:.4f}s", name="late", device="cpu")
    assert {account["stop"] for account in late["by_cohort"]} == {""}
    quorum = api.distill(path, quorum=0.3, name="quorum", device="cpu")
    assert quorum["hours"] == pytest.approx(ended / 3600)
    assert {account["stop"] for account in quorum["by_cohort"]} == {"joint"}


def test_commands_that_read_such_a_run(cpfl_command: Command, unbroken: Unbroken, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(**JOINT), path)
    cpfl_command("report", path, "--out", tmp_path / "report").good()
    assert "joint" in next((tmp_path / "report").rglob("*.html")).read_text()
    assert [row["state"] for row in tables.overview(path)] == ["finished"]
    printed = cpfl_command(*small_runs.run_words(tmp_path / "printed", JOINT)).good()
    assert "evaluated after 2 rounds" in printed.out
    assert "(joint)" in printed.out
    assert cpfl.load_run(path).summary["student_accuracy"] > 0
