"""Whole runs under the rule joint: costs by hand, limits, killed at any moment, distilled, looked at afterwards."""

from __future__ import annotations

import hashlib
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
from cpfl import api, hindsight
from cpfl.data.federated import Given
from cpfl.distillation.judges import JUDGES
from cpfl.errors import DamagedError, RunFolderError
from cpfl.federation import joint
from cpfl.problem import Problem, prepare
from cpfl.report import tables
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder, load_state

if TYPE_CHECKING:
    from conftest import Command

# Every judgement from the fifth on ends it, unless the gain grows: six legs of two rounds here.
JOINT = {
    "max_rounds": 30,
    "stopping.rule": "joint",
    "stopping.every": 2,
    "stopping.gain": 1000,
    "snapshots": "10s",
    "distillation.epochs": 1,
}
FIXED = {"devices.trace": "fixed", "devices.compute_ms": 50, "devices.network_kbps": 6000}


def rounds(path: Path) -> list[list[dict[str, Any]]]:
    folder = RunFolder.open(path)
    return [records.read(folder.rounds(cohort)) for cohort in range(len(folder.about()["plan"]))]


def judgements(path: Path) -> list[dict[str, Any]]:
    return records.read(path / "judgements.jsonl")


def problem_of(path: Path) -> Problem:
    return prepare(RunFolder.open(path).experiment(), [], Given())


@pytest.mark.parametrize(
    ("judge", "cohorts", "settings", "lacking"),
    [
        ("ensemble", 3, {}, 2),
        ("ensemble", 1, {}, 0),
        ("ensemble", 6, {"stopping.keep": "average"}, 5),  # who trains alone has its own average
        ("ensemble", 3, {"stopping.keep": "average"}, 3),
        ("ensemble", 1, {"stopping.keep": "average"}, 1),
        ("ensemble", 3, {"federation.participation": 0.5}, 3),  # who sat out has not the newest model
        ("public", 3, {}, 0),
    ],
)
def test_costs_by_hand(judge: str, cohorts: int, settings: dict[str, Any], lacking: int, unbroken: Unbroken) -> None:
    """`lacking` models are sent to each client, and those of several cohorts to the global server before."""
    path = unbroken(**(JOINT | FIXED | settings | {"stopping.judge": judge, "cohorts": cohorts}))
    problem, lines, said = problem_of(path), rounds(path), judgements(path)
    size, held = problem.model_bytes, problem.data.clients.validation_sizes
    if judge == "ensemble":
        seconds = max(cohorts * h * 0.05 + lacking * size / (6000 * 128) for h in held if h)
        cpu, sent = cohorts * held.sum() * 0.05, lacking * size * np.count_nonzero(held)
        sent += cohorts * size if cohorts > 1 else 0
    else:
        seconds, cpu, sent = 0.0, 0.0, cohorts * size
    before = 0.0
    for leg, one in enumerate(said, 1):
        assert (one["leg"], one["round"], one["cohorts"]) == (leg, 2 * leg, list(range(cohorts)))
        legs = [[r["seconds"] for r in cohort[2 * leg - 2 : 2 * leg]] for cohort in lines]
        assert one["clock"] == pytest.approx(before + max(map(sum, legs)) + seconds)
        for cohort, took in zip(lines, legs, strict=True):  # all begin a leg together, each ends it by itself
            assert [r["clock"] for r in cohort[2 * leg - 2 : 2 * leg]] == pytest.approx(
                [before + took[0], before + sum(took)]
            )
        trained = sum(r["cpu_seconds"] for cohort in lines for r in cohort[: 2 * leg])
        assert one["cpu_hours"] == pytest.approx((trained + leg * cpu) / 3600)
        assert (one["cpu_seconds"], one["bytes"], one["seconds"]) == (
            pytest.approx(cpu),
            sent,
            pytest.approx(seconds),
        )
        before = one["clock"]
    summary = json.loads((path / "summary.json").read_text())
    every = [r for cohort in lines for r in cohort]
    assert summary["hours"] == pytest.approx(before / 3600)
    assert summary["cpu_hours"] == pytest.approx((sum(r["cpu_seconds"] for r in every) + len(said) * cpu) / 3600)
    traffic = sum(r["bytes"] for r in every) + len(said) * sent + cohorts * size
    assert summary["comm_gb"] == pytest.approx(traffic / 1e9)
    assert {a["stop"] for a in summary["by_cohort"]} == {"joint"}
    assert all(a["hours"] == pytest.approx(before / 3600) for a in summary["by_cohort"])


def test_decisions_are_those_of_the_rule(unbroken: Unbroken) -> None:
    said = judgements(unbroken(**JOINT))
    points = [(one["cpu_hours"], one["value"]) for one in said]
    assert joint.replayed(points, 1000, 6) == len(said)
    assert [one["slope"] for one in said] == [joint.slope(points[: k + 1], 6) for k in range(len(said))]
    assert [one["decision"] for one in said] == ["on"] * (len(said) - 1) + ["stop"]


def test_the_judged_models_are_the_teachers(unbroken: Unbroken) -> None:
    """The ensemble as it was judged last, written out on the clients' samples."""
    path = unbroken(**(JOINT | {"distillation.join": "probabilities", "stopping.window": 1}))
    problem, said = problem_of(path), judgements(path)
    data = problem.data
    held = np.concatenate([data.clients[c].validation for c in range(6)])
    x, y = data.train.x[held].reshape(len(held), -1) / 255.0, data.train.y[held]
    counts = np.array([data.counts[members].sum(axis=0) for members in problem.plan], float)
    total = 0.0
    for cohort, mine in enumerate(counts):
        state = files.load_tensors(path / "models" / f"cohort-{cohort:04d}.safetensors")[0]
        weights = [state[name].double().numpy() for name in state]
        first, second = (w for w in weights if w.ndim == 2)
        if len(second) != 10:
            first, second = second, first
        bias = {len(w): w for w in weights if w.ndim == 1}
        logits = np.maximum(x @ first.T + bias[len(first)], 0) @ second.T + bias[10]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        everybody = counts.sum(axis=0)
        total = total + chances * np.where(everybody > 0, mine / np.maximum(everybody, 1), 1 / 3)
    total /= total.sum(axis=1, keepdims=True)
    assert said[-1]["value"] == pytest.approx(100 * np.mean(total.argmax(axis=1) == y))
    assert said[-1]["loss"] == pytest.approx(-np.log(total[np.arange(len(y)), y]).mean(), rel=1e-4)


def test_a_part_of_the_clients_is_asked(unbroken: Unbroken) -> None:
    all_, half = (judgements(unbroken(**(JOINT | {"stopping.asked": share}))) for share in (1.0, 0.5))
    problem = problem_of(unbroken(**JOINT))
    able, up = int(np.count_nonzero(problem.data.clients.validation_sizes)), 3 * problem.model_bytes
    assert (half[0]["bytes"] - up) * able == (all_[0]["bytes"] - up) * math.ceil(able / 2)
    assert half[0]["cpu_seconds"] < all_[0]["cpu_seconds"]
    assert len({(one["cpu_seconds"], one["bytes"]) for one in half}) == 1  # always the same ones


# Limits.


def test_hours_that_end_within_a_leg(unbroken: Unbroken) -> None:
    """The slowest cohort stops in the middle of the second leg; the others are judged once more, with the model it has,
    at a moment that counts its hours too, and all end in time."""
    chosen = JOINT | {"seed": 1, "stopping.every": 4, "stopping.judge": "public"}  # which takes no time
    free = rounds(unbroken(**chosen))
    ends = [cohort[7]["clock"] for cohort in free]
    slow = ends.index(max(ends))
    limit = free[slow][6]["clock"] + 0.5  # seven rounds of it have room, and the others' second leg
    assert all(end < limit for cohort, end in enumerate(ends) if cohort != slow)
    path = unbroken(**(chosen | {"stopping.hours": limit / 3600}))
    lines, said, summary = rounds(path), judgements(path), json.loads((path / "summary.json").read_text())
    assert {cohort[-1]["stop"] for cohort in lines} == {"hours"}
    assert lines[slow][-1]["round"] == 7
    others = [cohort for cohort in range(3) if cohort != slow]
    assert [one["cohorts"] for one in said[:2]] == [[0, 1, 2], others]
    assert said[1]["clock"] == lines[slow][-1]["clock"]
    assert summary["hours"] <= limit / 3600
    assert summary["teachers"] == [0, 1, 2]


def test_who_stopped_is_judged_as_it_was(unbroken: Unbroken) -> None:
    """Once more from the models: those of the end for who had stopped, of that round for the others."""
    chosen = JOINT | {"seed": 1, "stopping.every": 4, "snapshots": "4 rounds"}
    free = rounds(unbroken(**chosen))
    ends = [cohort[7]["clock"] for cohort in free]
    slow = ends.index(max(ends))
    seventh = free[slow][6]  # an eighth round has no room, a judgement has
    path = unbroken(**(chosen | {"stopping.hours": (seventh["clock"] + 0.9 * seventh["seconds"]) / 3600}))
    problem, folder, said = problem_of(path), RunFolder.open(path), judgements(path)
    assert slow not in said[1]["cohorts"]
    assert rounds(path)[slow][-1]["round"] == 7
    states = [
        load_state(folder.path / "models" / f"cohort-{cohort:04d}.safetensors")
        if cohort == slow
        else load_state(next(folder.path.glob(f"snapshots/*{cohort:04d}*round-000008*")))
        for cohort in range(3)
    ]
    judge = JUDGES["ensemble"](problem, problem.experiment.distillation, torch.device("cpu"))
    assert said[1]["loss"] == pytest.approx(judge.look(states).loss, rel=1e-6)


@pytest.mark.parametrize("cpu_hours", [0.02, 0.1, 0.3])  # the first is spent before a leg is over
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_cpu_hours_are_kept_to(cpu_hours: float, participation: float, unbroken: Unbroken) -> None:
    """Almost all of them are spent, and every cohort has as many rounds, whatever they cost it."""
    limit = {"stopping.cpu_hours": cpu_hours, "stopping.gain": 0, "max_rounds": 500, "stopping.every": 4}
    path = unbroken(**(JOINT | limit | {"federation.participation": participation, "cohorts": 2}))
    summary, lines, said = json.loads((path / "summary.json").read_text()), rounds(path), judgements(path)
    assert {cohort[-1]["stop"] for cohort in lines} == {"cpu hours"}
    dearest = sum(max(record["cpu_seconds"] for record in cohort) for cohort in lines) / 3600
    beyond = 0 if participation == 1 else dearest  # a round is expected to cost what the last one did
    assert cpu_hours - 2 * dearest < summary["cpu_hours"] <= cpu_hours + beyond
    numbers = [cohort[-1]["round"] for cohort in lines]
    assert max(numbers) - min(numbers) <= (1 if participation == 1 else 0.1 * max(numbers) + 1)
    assert all(one["cohorts"] == [0, 1] for one in said)
    for one in said[:-1]:  # the next one's price is kept back
        assert sum(one["allowed"]) + one["cpu_seconds"] == pytest.approx(cpu_hours * 3600)
    assert bool(said) == (cpu_hours > 0.02)
    for one in said[-1:]:  # no more is to come
        assert sum(one["allowed"]) == pytest.approx(cpu_hours * 3600)


def test_models_that_have_diverged_are_told(cpfl_command: Command, tmp_path: Path) -> None:
    """Where nobody validates, the judgement is the first to see it."""
    wild = {
        "federation.server": "fedavgm", "federation.server_lr": 1e38, "federation.participants": 1, "seed": 1,
        "stopping.every": 1, "data.validation_minimum": 60, "cohorts": 2, "clients": 40, "data.train_limit": 0,
    }  # fmt: skip
    words = small_runs.run_words(tmp_path / "run", JOINT | wild)
    failed = cpfl_command(*words, "--engine", "reference")
    assert failed.code == 2
    assert "is no longer a number: lower federation.lr" in failed.err


def test_max_rounds_need_no_judgement(unbroken: Unbroken) -> None:
    path = unbroken(**(JOINT | {"max_rounds": 5}))
    assert [one["round"] for one in judgements(path)] == [2, 4]
    assert {cohort[-1]["stop"] for cohort in rounds(path)} == {"max rounds"}
    longer = unbroken(**(JOINT | {"max_rounds": 4}))
    assert [one["round"] for one in judgements(longer)] == [2]  # nobody waits for a second one


# Killed.


SPARSE = {"checkpoint_seconds": 1000}  # nothing but stops: cohorts fall back behind many judgements


@pytest.mark.parametrize("settings", [{}, {"stopping.judge": "public", "stopping.hours": 0.02}])
def test_killed_at_many_operations(settings: dict[str, Any], tmp_path: Path, unbroken: Unbroken) -> None:
    chosen = JOINT | settings
    done = small_runs.cpfl(*small_runs.run_words(tmp_path / "run", chosen), driver=("copy", str(tmp_path / "before")))
    assert done.returncode == 0, done.stderr
    whole, wrong = unbroken(**chosen), {}
    assert small_runs.differing(tmp_path / "run", whole) == []
    tried: dict[str, int] = {}  # what a kill may leave of records, and judgements among it
    for state in sorted((tmp_path / "before").iterdir()):
        written = b"".join(file.read_bytes() for file in sorted(state.rglob("*.jsonl")) if file.name != "log.jsonl")
        digest = hashlib.sha256(written).hexdigest()
        if digest in tried or not (state / "run.json").exists():
            continue
        tried[digest] = len(judgements(state))
        api.resume(state, device="cpu")
        if found := small_runs.differing(state, whole):
            wrong[state.name] = found
    assert wrong == {}
    assert set(tried.values()) == set(range(len(judgements(whole)) + 1))


@pytest.mark.parametrize(
    ("k", "settings", "engine"), [(60, {}, "reference"), (23, SPARSE, "workers"), (44, SPARSE, "reference")]
)
def test_a_process_that_dies(k: int, settings: dict[str, Any], engine: str, tmp_path: Path) -> None:
    path, chosen = tmp_path / "run", JOINT | settings
    dead = small_runs.cpfl(*small_runs.run_words(path, chosen), "--engine", engine, driver=("kill", str(k)))
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    ended = small_runs.cpfl("resume", path)
    assert ended.returncode == 0, ended.stderr
    whole = tmp_path / "whole"
    api.run("digits", settings=small_runs.SETTINGS | chosen, out=whole, device="cpu", engine=engine)
    assert small_runs.differing(path, whole) == []


def test_a_torn_line_is_judged_again(tmp_path: Path, unbroken: Unbroken) -> None:
    path, whole = tmp_path / "run", unbroken(**(JOINT | SPARSE))
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    for name in ("checkpoints", "rounds"):
        for file in (path / name).iterdir():
            file.unlink()
    content = (path / "judgements.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    (path / "judgements.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    api.resume(path, device="cpu")
    assert small_runs.differing(path, whole) == []


def test_a_damaged_file_is_told(tmp_path: Path, unbroken: Unbroken) -> None:
    for content, words in ((b"", "lacks judgements"), (b'{"leg":1}\n', "not that of a judgement")):
        path = tmp_path / str(len(content))
        shutil.copytree(unbroken(**JOINT), path)
        (path / "summary.json").unlink()
        for newest in path.glob("checkpoints/*-round-000012.safetensors"):  # each falls back to the leg before
            newest.unlink()
        (path / "judgements.jsonl").write_bytes(content)
        with pytest.raises(DamagedError, match=words):
            api.resume(path, device="cpu")


# Afterwards.


def test_distilled_at_any_moment(tmp_path: Path, unbroken: Unbroken) -> None:
    """While fast cohorts wait, the model that they wait with is theirs; all stop with the last judgement."""
    path = tmp_path / "run"
    shutil.copytree(unbroken(**JOINT), path)
    said, lines = judgements(path), rounds(path)
    slowest = max(range(3), key=lambda c: lines[c][3]["clock"])
    moment = lines[slowest][3]["clock"] - 1e-3  # just before the second judgement
    early = api.distill(path, at=f"{moment:.4f}s", name="early", device="cpu")
    assert early["rounds"] == 4 * 3 - 1
    assert early["hours"] == pytest.approx(moment / 3600, abs=1e-6)
    trained = sum(r["cpu_seconds"] for cohort in lines for r in cohort if r["clock"] <= moment)
    assert early["cpu_hours"] == pytest.approx((trained + said[0]["cpu_seconds"]) / 3600)
    ended = said[-1]["clock"]
    late = api.distill(path, at=f"{ended - 0.01:.4f}s", name="late", device="cpu")
    assert {account["stop"] for account in late["by_cohort"]} == {""}
    quorum = api.distill(path, quorum=0.3, name="quorum", device="cpu")
    assert quorum["hours"] == pytest.approx(ended / 3600)
    assert {account["stop"] for account in quorum["by_cohort"]} == {"joint"}


def test_hindsight_sees_what_the_run_saw(unbroken: Unbroken) -> None:
    path = unbroken(**(JOINT | {"snapshots": "2 rounds"}))
    said = judgements(path)
    seen = list(hindsight.judged(path, device="cpu"))
    assert [m.round for m in seen] == [one["round"] for one in said]
    for moment, one in zip(seen, said, strict=True):
        assert (moment.cpu_hours, moment.value, moment.loss) == pytest.approx(
            (one["cpu_hours"], one["value"], one["loss"]), rel=1e-6
        )
    public = list(hindsight.judged(path, device="cpu", stopping__judge="public"))
    assert all(0 <= moment.value <= 100 and moment.loss is None for moment in public)


def test_hindsight_of_another_rule(unbroken: Unbroken) -> None:
    """A cohort that had stopped is judged as it was then; a run without such snapshots is told so."""
    path = unbroken()
    seen = list(hindsight.judged(path, device="cpu", distillation__join="probabilities"))
    assert [m.round for m in seen] == [2, 4]
    assert seen[0].cpu_hours < seen[1].cpu_hours
    with pytest.raises(RunFolderError, match="25 rounds"):
        list(hindsight.judged(unbroken(snapshots="10s"), device="cpu"))


def test_commands_read_such_a_run(unbroken: Unbroken, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(**JOINT), path)
    shown = small_runs.cpfl("report", path, "--out", tmp_path / "report")
    assert shown.returncode == 0, shown.stderr
    assert "joint" in next((tmp_path / "report").rglob("*.html")).read_text()
    assert [row["state"] for row in tables.overview(tables.find_runs(path))] == ["finished"]
    told = small_runs.cpfl(*small_runs.run_words(tmp_path / "told", JOINT))
    assert "judged after 2 rounds" in told.stdout
    assert "(joint)" in told.stdout
    assert cpfl.load_run(path).summary["student_accuracy"] > 0
