"""Cohorts that train different models: equal with every engine, each accounted by its own size, distilled into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import cpfl
from cpfl.data.given import Given
from cpfl.distillation.evaluation import EVALUATORS
from cpfl.method import distill
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.reload import reload_task
from cpfl.runs.teachers import Teachers
from cpfl.settings import Experiment, experiment_file
from cpfl.task.loading import given_arrays
from cpfl.task.task import Task, build_task

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

SMALL: dict[str, Any] = {
    "clients": 9,
    "cohorts": 3,
    "max_rounds": 4,
    "snapshots": "2 rounds",
    "precision": "float64",
    "data.train_limit": 250,
    "data.public_limit": 60,
    "distillation.epochs": 2,
    "distillation.batch_size": 32,
    "model.by_cohort": {"1": "test_models_by_cohort:Deep", "2": "test_models_by_cohort:Deep"},
}


class Deep(nn.Module):
    """Another architecture than the mlp of the preset."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def experiment(**settings: Any) -> Experiment:
    tree = SMALL | {key.replace("__", "."): value for key, value in settings.items()}
    return experiment_file.with_settings(experiment_file.load("digits"), tree)


def task(**settings: Any) -> Task:
    return build_task(experiment(**settings), [], Given())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same experiment with every engine."""
    folder = tmp_path_factory.mktemp("runs")
    for engine in ("reference", "workers", "lanes"):
        cpfl.run(experiment(), out=folder / engine, engine=engine, device="cpu", workers=2 * (engine == "workers"))
    return {engine: folder / engine for engine in ("reference", "workers", "lanes")}


@pytest.mark.parametrize("engine", ["workers", "lanes"])
def test_engines_agree(runs: dict[str, Path], engine: str) -> None:
    ours, plain = RunFolder.open(runs[engine]), RunFolder.open(runs["reference"])
    assert ours.engine() == engine
    for cohort in range(3):
        model, expected = load_state(ours.teacher(cohort)), load_state(plain.teacher(cohort))
        assert model.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(model[name], value, rtol=1e-9, atol=1e-9)
        for line, other in zip(records.read(ours.rounds(cohort)), records.read(plain.rounds(cohort)), strict=True):
            for key in ("participants", "snapshots"):
                assert line.pop(key, None) == other.pop(key, None)
            assert line == pytest.approx(other)


def test_each_cohort_has_its_own_model_and_start(runs: dict[str, Path]) -> None:
    folder = RunFolder.open(runs["reference"])
    names = [set(load_state(folder.teacher(cohort))) for cohort in range(3)]
    assert names[0] == set(task().start)
    assert names[1] == names[2] == set(Deep().state_dict())
    starts = [load_state(folder.start(cohort)) for cohort in range(3)]
    assert all(torch.equal(starts[1][name], starts[2][name]) for name in starts[1])
    assert set(load_state(folder.model("global"))) == names[0]  # the student is the experiment's own model


def test_traffic_is_that_of_the_models(runs: dict[str, Path]) -> None:
    folder = RunFolder.open(runs["reference"])
    sizes = [4 * sum(v.numel() for v in load_state(folder.start(cohort)).values()) for cohort in range(3)]
    assert sizes[0] != sizes[1] == sizes[2]
    sent = sum(sizes)  # to the global server, at the end
    for cohort, size in enumerate(sizes):
        lines = records.read(folder.rounds(cohort))
        assert {line["bytes"] for line in lines} == {2 * 3 * size}
        sent += sum(line["bytes"] for line in lines)
    summary = folder.summary()
    assert summary is not None
    assert summary["comm_gb"] == pytest.approx(sent / 1e9)


def test_each_teacher_has_its_own_module(runs: dict[str, Path]) -> None:
    """The ensemble's accuracy against the weighted sum of logits written out here."""
    folder = RunFolder.open(runs["reference"])
    ours = task()
    data = ours.data
    x, y = data.transform(torch.as_tensor(data.test.x)), torch.as_tensor(data.test.y)
    counts = torch.stack([torch.as_tensor(data.counts[clients].sum(axis=0)) for clients in ours.cohorts]).double()
    weights = counts / counts.sum(dim=0)
    modules = [ours.build().double(), Deep().double(), Deep().double()]
    total = torch.zeros(len(x), 10, dtype=torch.float64)
    for cohort, module in enumerate(modules):
        module.load_state_dict(load_state(folder.teacher(cohort)))
        with torch.no_grad():
            total += weights[cohort] * module(x)
    summary = folder.summary()
    assert summary is not None
    expected = 100 * total.argmax(dim=1).eq(y).double().mean().item()
    assert summary["ensemble_accuracy"] == pytest.approx(expected)


def test_a_moment_before_the_first_snapshot_takes_each_cohorts_own_start(runs: dict[str, Path]) -> None:
    outcome = cpfl.distill(runs["workers"], at="1s", name="early", device="cpu")
    assert outcome["teachers"] == [0, 1, 2]
    assert outcome["rounds"] == 0


def test_a_single_teacher_is_exported_as_what_it_is(runs: dict[str, Path], tmp_path: Path) -> None:
    """Distilled when one cohort of its own model had stopped and the others are dropped: its model is the result."""
    folder = RunFolder.open(runs["lanes"])
    ends = {cohort: records.read(folder.rounds(cohort))[-1]["clock"] for cohort in range(3)}
    first = min(ends, key=lambda cohort: ends[cohort])
    cpfl.distill(runs["lanes"], quorum=0.01, unfinished="drop", name="one", device="cpu")
    cpfl.export(runs["lanes"], tmp_path / "model", distillation="one", onnx=False)
    assert set(load_state(tmp_path / "model" / "model.safetensors")) == set(load_state(folder.teacher(first)))


def test_it_is_resumed_as_it_began(runs: dict[str, Path]) -> None:
    folder = RunFolder.open(runs["workers"])
    again = reload_task(folder, None, None, given_arrays(None, None, None), lambda text: None)
    for cohort in (1, 2):
        stored = load_state(folder.own_start(cohort))
        assert all(torch.equal(value, stored[name]) for name, value in again.for_cohort(cohort).start.items())


@pytest.mark.parametrize("metric", ["ensemble-accuracy", "public-agreement"])
def test_the_joint_rule_evaluates_and_pays_for_all_models(metric: str) -> None:
    ours = task(stopping__rule="joint", stopping__metric=metric)
    seen = EVALUATORS[metric](ours, ours.experiment.distillation, torch.device("cpu"))
    sizes = [ours.for_cohort(cohort).model_bytes for cohort in range(3)]
    if metric == "public-agreement":
        assert seen.cost().bytes == sum(sizes)
    else:
        held = ours.data.clients.validation_sizes
        evaluating = [sum(bool(held[k]) for k in clients) for clients in ours.cohorts]
        down = sum(count * (sum(sizes) - own) for count, own in zip(evaluating, sizes, strict=True))
        assert seen.cost().bytes == sum(sizes) + down
    assert 0 <= seen.evaluate([ours.for_cohort(cohort).start for cohort in range(3)])[0] <= 100


def test_distilling_starts_of_one_model_is_as_before() -> None:
    """A cohort that names the experiment's own architecture changes nothing."""
    plain = task(model__by_cohort={})
    named = task(model__by_cohort={"1": "mlp"})
    settings, cpu = plain.experiment.distillation, torch.device("cpu")
    outcomes = []
    for one in (plain, named):
        starts = [one.for_cohort(cohort).start for cohort in range(3)]
        outcomes.append(
            distill(one, Teachers([0, 1, 2], starts, 0.0, False, {}, []), settings, cpu, lambda record: None)
        )
    assert all(torch.equal(value, outcomes[1].student[name]) for name, value in outcomes[0].student.items())


def test_the_experiments_own_model_by_name_is_the_same_model() -> None:
    """With its arguments and its size on the wire; another one has its own defaults."""
    own = {"model__args": {"hidden": 8}, "model__bytes": 346_000}
    named = task(model__by_cohort={"1": "mlp", "2": "femnist-cnn"}, **own)
    assert named.for_cohort(1).model_bytes == named.model_bytes == 346_000
    assert named.for_cohort(2).model_bytes == 4 * sum(value.numel() for value in named.for_cohort(2).start.values())
    assert named.start.keys() == named.for_cohort(1).start.keys()
    assert all(torch.equal(value, named.for_cohort(1).start[name]) for name, value in named.start.items())


def test_the_experiments_own_model_by_name_is_exported(tmp_path: Path) -> None:
    """Alone, a cohort's model is the result: it is built with the experiment's arguments there too."""
    settings = {"model__args": {"hidden": 8}, "cohorts": 1, "model__by_cohort": {"0": "mlp"}}
    run = cpfl.run(experiment(**settings), out=tmp_path / "run", engine="reference", device="cpu")
    cpfl.export(run.path, tmp_path / "model", onnx=False)
    assert load_state(tmp_path / "model" / "model.safetensors")["1.weight"].shape == (8, 64)


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("model.by_cohort.4=mlp", "model.by_cohort names cohort '4': cohorts are 0 to 3"),
        ("model.by_cohort.first=mlp", "model.by_cohort names cohort 'first': cohorts are 0 to 3"),
        ("model.by_cohort.0=mpl", "model.by_cohort.0 = 'mpl' is unknown; did you mean mlp?"),
        ("model.by_cohort.0=gn-lenet", "model gn-lenet takes images of 15×15 or more"),
    ],
)
def test_mistakes(cpfl_command: Command, tmp_path: Path, setting: str, reported: str) -> None:
    answer = cpfl_command("run", "digits", "--set", setting, "--out", tmp_path / "run")
    assert answer.code == 2
    assert reported in answer.err
    assert not (tmp_path / "run").exists()


def test_from_the_command_line(cpfl_command: Command, tmp_path: Path) -> None:
    words = ("--set", "model.by_cohort.0=femnist-cnn", "--set", "clients=8", "--set", "data.train_limit=200")
    quick = ("--set", "max_rounds=2", "--set", "distillation.epochs=1", "--out", tmp_path / "run")
    cpfl_command("run", "digits", *words, *quick).good()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["cohort_model_bytes"]["0"] != about["model_bytes"]
    assert RunFolder.open(tmp_path / "run").experiment().model.by_cohort == {"0": "femnist-cnn"}
