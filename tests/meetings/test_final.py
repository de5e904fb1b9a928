"""The end of a run: the mean of the cohort models beside the student or in its place, and the traffic by link."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cpfl
from cpfl import api
from cpfl.data.given import Given
from cpfl.errors import CpflError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.task.task import Task, build_task

SMALL: dict[str, Any] = {
    "clients": 9, "cohorts": 3, "max_rounds": 5, "precision": "float64", "data.train_limit": 300,
    "data.public_limit": 60, "model.args.hidden": 8, "distillation.epochs": 2, "distillation.batch_size": 32,
}  # fmt: skip
MEET = {"meetings.rule": "mean", "meetings.interval": "2 rounds"}
MERGE = {"meetings.final": "merge", "data.public": "none"}
GONE = ("distillation.epochs", "distillation.batch_size", "data.public_limit")  # what has no effect then

Made = Callable[..., cpfl.Run]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run with these settings, made once."""

    @cache
    def run(text: str) -> cpfl.Run:
        out = tmp_path_factory.mktemp("final") / "run"
        return cpfl.run("digits", settings=json.loads(text), out=out, engine="reference", device="cpu")

    return lambda **settings: run(json.dumps(settings, sort_keys=True))


def merging(**more: Any) -> dict[str, Any]:
    return {key: value for key, value in SMALL.items() if key not in GONE} | MERGE | more


def task_of(run: cpfl.Run) -> Task:
    return build_task(run.experiment, [], Given())


def mean_of(run: cpfl.Run, weights: list[float]) -> dict[str, torch.Tensor]:
    folder = RunFolder.open(run.path)
    states = [load_state(folder.teacher(cohort)) for cohort in range(3)]
    total = sum(weights)
    return {n: sum(w * s[n] for w, s in zip(weights, states, strict=True)) / total for n in states[0]}  # type: ignore[misc]


def accuracy(task: Task, state: dict[str, torch.Tensor]) -> float:
    module = task.build()
    module.double().load_state_dict(state)
    with torch.no_grad():
        answers = module(task.data.transform(torch.as_tensor(task.data.test.x)))
    return float(100 * np.mean(answers.argmax(1).numpy() == task.data.test.y))


def test_the_mean_is_measured_beside_the_student(made: Made) -> None:
    run = made(**SMALL)
    assert run.summary["merged_accuracy"] == pytest.approx(accuracy(task_of(run), mean_of(run, [1, 1, 1])))
    assert "merged_accuracy" not in made(**(SMALL | {"cohorts": 1})).summary


@pytest.mark.parametrize("weights", ["equal", "samples", "work"])
def test_the_mean_becomes_the_global_model(weights: str, made: Made) -> None:
    """With no public samples at all. Work counts since the last meeting, after round 4."""
    run = made(**merging(**MEET, **{"meetings.rule_args.weights": weights}))
    task = task_of(run)
    sizes = [float(task.data.clients.training_sizes[np.asarray(own)].sum()) for own in task.cohorts]
    last = [[r["samples"] for r in run.rounds if r["cohort"] == cohort and r["round"] == 5] for cohort in range(3)]
    expected = mean_of(run, {"equal": [1.0] * 3, "samples": sizes, "work": [float(s) for (s,) in last]}[weights])
    assert run.model.keys() == expected.keys()
    for name, value in run.model.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)
    assert run.summary["student_accuracy"] == run.summary["merged_accuracy"]
    assert run.summary["student_accuracy"] == pytest.approx(accuracy(task, expected))
    assert run.summary["distill_seconds"] == 0
    assert len(task.data.public) == 0


def test_an_interrupted_run_without_public_samples(made: Made, tmp_path: Path) -> None:
    class Stop(Exception):
        """Takes the place of a kill."""

    class Dies(cpfl.Callback):
        left = 7

        def on_round(self, session: object, closed: object) -> None:
            self.left -= 1
            if not self.left:
                raise Stop

    settings = merging(**MEET)
    with pytest.raises(Stop):
        cpfl.run("digits", settings=settings, out=tmp_path / "run", engine="reference", device="cpu", callback=Dies())
    resumed = cpfl.resume(tmp_path / "run", device="cpu")
    for name, value in made(**settings).model.items():
        assert torch.equal(resumed.model[name], value)


def test_a_merged_run_is_distilled_later(made: Made) -> None:
    """On public samples that are given then."""
    run = made(**merging(**MEET))
    with pytest.raises(CpflError, match="has no public samples"):
        api.distill(run.path, device="cpu")
    public = np.random.default_rng(0).integers(0, 255, (40, *task_of(run).data.train.shape)).astype(np.uint8)
    later = api.distill(run.path, device="cpu", public=public, epochs=2, name="later")
    assert later["merged_accuracy"] == run.summary["merged_accuracy"]
    assert later["distill_seconds"] > 0


def test_traffic_by_link(made: Made) -> None:
    """Servers exchange models at meetings, at evaluations and at the end; with n = 1 the only server is the global
    one."""
    joint = {"stopping.rule": "joint", "stopping.eval_interval": 2}
    for more in (MEET, {}, joint, {"cohorts": 1}):
        run = made(**(SMALL | more))
        folder, summary = RunFolder.open(run.path), run.summary
        size, n = folder.about()["model_bytes"], len(folder.about()["cohorts"])
        rounds = sum(r["bytes"] for r in run.rounds)
        met, evaluated = records.read(folder.meetings()), records.read(folder.evaluations())
        assert bool(met) == (more is MEET)
        assert bool(evaluated) == (more is joint)
        between = sum(one["bytes"] for one in met) + n * size * (1 + len(evaluated))
        assert summary["client_gb"] == pytest.approx((summary["comm_gb"] * 1e9 - between) / 1e9)
        assert summary["client_gb"] * 1e9 >= rounds * (1 - 1e-9)
        expected = between / 1e9 if n > 1 else summary["comm_gb"]
        assert summary["global_gb"] == pytest.approx(expected)


@pytest.mark.parametrize(("hours", "meetings", "equal"), [(0.05, 2, False), (0.0515, 3, True)])
def test_a_limit_at_a_meeting_and_one_right_after_it(hours: float, meetings: int, equal: bool, made: Made) -> None:
    """Rounds last 9 and 14 s. At 180 s nobody waits for a meeting that is the end; at 185.4 s nobody begins again."""
    limit = {"clients": 8, "cohorts": 2, "max_rounds": 100, "devices.trace": "fixed", "meetings.interval": "60s"}
    run = made(**(SMALL | MEET | limit | {"stopping.max_hours": hours, "stopping.patience": 100, "precision": "auto"}))
    assert len(records.read(RunFolder.open(run.path).meetings())) == meetings
    one, other = (load_state(RunFolder.open(run.path).teacher(cohort)) for cohort in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one) == equal


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.public": "none"}, "leaves nothing to distill on"),
        ({"meetings.final": "merge", "cohorts": 1}, "it needs cohorts != 1"),
        ({"meetings.final": "merge", "distillation.lr": 0.1}, "it needs meetings.final != merge"),
        (MERGE | {"data.public_limit": 5}, "it needs data.public != none"),
        ({"meetings.final": "merge", "model.by_cohort": {"0": "mlp"}}, "needs one model for all cohorts"),
        (MERGE | {"stopping.rule": "joint", "stopping.metric": "public-agreement"}, "needs public samples"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CpflError) as refused:
        api.run("digits", settings=settings, out=tmp_path / "run", device="cpu")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
