"""Cohorts that train different models meet by distillation: each continues from a student of its own architecture."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from small_runs import Unbroken
from tests.engines.test_lanes import assert_equal

import cpfl
from cpfl import api
from cpfl.errors import CpflError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.teachers import select_teachers
from cpfl.settings import Distillation

MEET: dict[str, Any] = {
    "cohorts": 4, "clients": 8, "model.by_cohort": {"1": "tests.runs.test_differing_meetings:Wide"}, "max_rounds": 5,
    "meetings.rule": "distill", "meetings.rule_args.epochs": 1, "meetings.interval": "2 rounds",
    "distillation.epochs": 1, "snapshots": "3 rounds",
}  # fmt: skip
MEET["model.by_cohort"]["2"] = MEET["model.by_cohort"]["1"]


class Wide(torch.nn.Sequential):
    """Another model for the digits."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.Tanh(), torch.nn.Linear(12, 10))


def meetings(path: Path) -> list[dict[str, Any]]:
    return records.read_sealed(path / "meetings.jsonl", RunFolder.open(path).identity)


def shapes(path: Path) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in load_state(path).items()}


def test_each_continues_from_a_student_of_its_own_architecture(unbroken: Unbroken) -> None:
    path = unbroken(**MEET)
    folder, held = RunFolder.open(path), meetings(path)
    assert [one["rounds"] for one in held] == [[2] * 4, [4] * 4]
    about = folder.about()
    sizes = [about["cohort_model_bytes"].get(str(cohort), about["model_bytes"]) for cohort in range(4)]
    assert len(set(sizes)) == 2
    for one in held:
        assert one["bytes"] == 2 * sum(sizes)
        assert sorted(one["models"]) == ["1", "2"]
        assert shapes(folder.meeting_model(one["meeting"])) == shapes(folder.model("start"))
        assert shapes(folder.meeting_model(one["meeting"], 1)) == shapes(folder.own_start(1))
        own, twin = (load_state(folder.meeting_model(one["meeting"], cohort)) for cohort in (1, 2))
        assert all(torch.equal(value, twin[name]) for name, value in own.items())
    early = select_teachers(folder, Distillation(at=f"{held[0]['clock'] + 1e-3:.4f}s"))
    assert early.sources == [folder.meeting_model(1, cohort if cohort in (1, 2) else None) for cohort in range(4)]
    assert "merged_accuracy" not in cpfl.load_run(path).summary


def test_a_student_begins_from_the_mean_of_its_architecture(tmp_path: Path) -> None:
    """With a learning rate of almost nothing it stays there."""
    changes = MEET | {
        "distillation.lr": 1e-30,
        "distillation.student_init": "auto",
        "snapshots": "2 rounds",
        "precision": "float64",
        "max_rounds": 3,
    }
    run = api.run("digits", settings=small_runs.settings_with(changes), out=tmp_path / "run", device="cpu")
    folder = RunFolder.open(run.path)
    for cohorts in ((0, 3), (1, 2)):
        brought = [load_state(folder.snapshot(cohort, 2)) for cohort in cohorts]
        student = load_state(folder.meeting_model(1, cohorts[0] or None))
        for name, value in student.items():
            torch.testing.assert_close(value, (brought[0][name] + brought[1][name]) / 2)


def test_equal_on_all_engines(tmp_path: Path) -> None:
    changes = small_runs.settings_with(MEET | {"precision": "float64", "max_rounds": 3, "snapshots": ""})
    plain, *others = (
        cpfl.run("digits", out=tmp_path / engine, engine=engine, device="cpu", settings=changes)
        for engine in ("reference", "workers", "lanes")
    )
    assert len(meetings(plain.path)) == 1
    for other in others:
        assert_equal(plain, other)


def test_joint_evaluates_the_ensemble_of_different_models(unbroken: Unbroken) -> None:
    """There is no merged model: clients evaluate all n, which come to the global server for the meeting anyway."""
    path = unbroken(**(MEET | {"stopping.rule": "joint", "stopping.min_gain": 0}))
    evaluated = records.read_sealed(path / "evaluations.jsonl", RunFolder.open(path).identity)
    assert [one["rounds"] for one in evaluated] == [one["rounds"] for one in meetings(path)]
    apart = {key: value for key, value in MEET.items() if "meetings" not in key}
    joint = {"stopping.rule": "joint", "stopping.min_gain": 0, "stopping.eval_interval": 2}
    other = unbroken(**(apart | joint))
    before = records.read_sealed(other / "evaluations.jsonl", RunFolder.open(other).identity)
    assert evaluated[0]["accuracy"] == before[0]["accuracy"]
    assert evaluated[0]["cpu_seconds"] == before[0]["cpu_seconds"]
    assert evaluated[0]["bytes"] == before[0]["bytes"] - before[0]["global_bytes"]


def test_an_incomplete_meeting_is_held_again(tmp_path: Path, unbroken: Unbroken) -> None:
    path, chosen = tmp_path / "run", MEET | {"checkpoint_seconds": 1000}
    whole = unbroken(**chosen)
    shutil.copytree(whole, path)
    (path / "summary.json").unlink()
    for file in (*path.glob("checkpoints/*"), *path.glob("rounds/*")):
        file.unlink()
    lines = (path / "meetings.jsonl").read_bytes().splitlines(keepends=True)
    (path / "meetings.jsonl").write_bytes(lines[0])  # the second is held again
    (path / "models" / "meeting-0002-cohort-0002.safetensors").write_bytes(b"half")
    api.resume(path, device="cpu")
    assert small_runs.differing(path, whole) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"meetings.rule": "mean"}, "needs one model for all cohorts"),
        ({"meetings.rule": "outer"}, 'or set meetings.rule = "distill"'),
        ({"federation.server": "fedavgm", "meetings.server_state": "average"}, "needs one model for all cohorts"),
        ({"meetings.final": "merge"}, "needs one model for all cohorts"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = {key: value for key, value in MEET.items() if key != "meetings.rule_args.epochs"} | changes
    with pytest.raises(CpflError) as refused:
        api.run("digits", settings=small_runs.settings_with(settings), out=tmp_path / "run", device="cpu")
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()
