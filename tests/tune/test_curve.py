"""A trial's curve: what the models of every moment are worth, and what they had cost; also after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cpfl
from cpfl import api
from cpfl.callbacks import CallbackList
from cpfl.data.given import Given
from cpfl.federation.session import ClosedRound, Session
from cpfl.runs.folder import RunFolder
from cpfl.runs.reload import reload_task
from cpfl.runs.teachers import select_teachers
from cpfl.settings import Distillation
from cpfl.tuning.curve import CurveFollower, evaluator, read_curve
from cpfl.tuning.goal import Goal, Point

SETTINGS: dict[str, Any] = {
    "clients": 6,
    "cohorts": 2,
    "checkpoint_seconds": 0,
    "snapshots": "30s",
    "data.train_limit": 240,
    "data.public_limit": 60,
    "data.alpha": 10,
    "model.args.hidden": 8,
    "federation.lr": 0.1,
    "federation.batch_size": 10,
    "stopping.rule": "budget",
    "stopping.max_hours": 120 / 3600,
    "stopping.keep": "last",
}
MEET = {"meetings.rule": "mean", "meetings.interval": "20s", "meetings.final": "merge"}


class Interrupted(Exception):
    """What ends a run in its midst."""


class Interruption(cpfl.Callback):
    """Ends a run after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def on_round(self, session: Session, closed: ClosedRound) -> None:
        self._left -= 1
        if not self._left:
            raise Interrupted


def run(out: Path, follower: CurveFollower, **settings: Any) -> Path:
    """A trial with these settings."""
    given: dict[str, Any] = {"train_only": True, "engine": "reference", "device": "cpu", "out": out}
    return api.run("digits", settings=SETTINGS | settings, callback=follower, **given).path


@pytest.mark.parametrize("settings", [{}, MEET], ids=["ensemble", "merged"])
def test_a_point_is_what_the_models_of_that_moment_are_worth(settings: dict[str, Any], tmp_path: Path) -> None:
    path = run(tmp_path / "run", CurveFollower(Goal(hours=1)), **settings)
    curve, stop = read_curve(path)
    assert stop == "end"
    assert len(curve) == 4
    assert [point.moment * 3600 for point in curve[:3]] == pytest.approx([30, 60, 90])
    folder = RunFolder.open(path)
    assert folder.summary() is None  # nothing was distilled, and no test sample was looked at
    task = reload_task(folder, None, None, Given(None, None, None), print)
    judge = evaluator(task, torch.device("cpu"))
    cost = judge.cost()
    for point in curve:
        teachers = select_teachers(folder, Distillation(at=f"{point.moment:.9f}h"))
        accuracy, _ = judge.evaluate(list(teachers.states()))
        assert point.accuracy == pytest.approx(accuracy)
        assert point.rounds == teachers.costs["rounds"]
        assert point.hours == pytest.approx(point.moment + cost.seconds / 3600)
        assert point.cpu_hours == pytest.approx(teachers.costs["cpu_hours"] + cost.cpu_seconds / 3600)
        models = 2 * task.model_bytes / 1e9  # to the global server: part of the evaluation, and of the distillation
        assert point.traffic_gb == pytest.approx(teachers.costs["comm_gb"] - models + cost.bytes / 1e9)
    assert curve[-1].accuracy > curve[0].accuracy


@pytest.mark.parametrize("settings", [{}, MEET], ids=["ensemble", "merged"])
def test_a_curve_continues_after_an_interruption(settings: dict[str, Any], tmp_path: Path) -> None:
    whole, _ = read_curve(run(tmp_path / "whole", CurveFollower(Goal(hours=1)), **settings))
    rounds = sum(1 for _ in cpfl.load_run(tmp_path / "whole").rounds)
    for left in (2, rounds // 2, rounds - 1):
        out = tmp_path / f"run-{left}"
        both: Any = CallbackList(CurveFollower(Goal(hours=1)), Interruption(left))
        with pytest.raises(Interrupted):
            run(out, both, **settings)
        api.resume(out, callback=CurveFollower(Goal(hours=1)), train_only=True, device="cpu")
        assert read_curve(out) == (whole, "end")


def test_a_trial_ends_when_it_cannot_win(tmp_path: Path) -> None:
    """Over a limit, at the goal, or behind a curve that is better everywhere."""
    path = run(tmp_path / "over", CurveFollower(Goal(cpu_hours=1e-9)))
    assert read_curve(path)[1] == "over a limit"
    assert len(read_curve(path)[0]) == 1
    path = run(tmp_path / "reached", CurveFollower(Goal(accuracy=0.1, minimise="hours")))
    assert read_curve(path)[1] == "reached"
    ahead = [Point(0.0, 0.0, 0.0, 100.0, 1, 0.0)]
    many = {"snapshots": "12s"}
    path = run(tmp_path / "behind", CurveFollower(Goal(hours=1), [ahead]), **many)
    assert read_curve(path)[1] == "behind"
    assert len(read_curve(path)[0]) == 6
    path = run(tmp_path / "kept", CurveFollower(Goal(hours=1), [ahead], prune=False), **many)
    assert read_curve(path)[1] == "end"
    path = run(tmp_path / "dearer", CurveFollower(Goal(accuracy=99.9, minimise="hours"), [ahead]), **many)
    assert read_curve(path)[1] == "dearer"


def test_resume_distills_what_was_only_trained(tmp_path: Path) -> None:
    path = run(tmp_path / "run", CurveFollower(Goal(hours=1)), **{"distillation.epochs": 2})
    assert api.resume(path, device="cpu").summary["student_accuracy"] > 0
