"""Cohorts that train different models: equal with every engine, each accounted by its own size, distilled into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import cpfl
from cpfl import experiment_file
from cpfl.data.federated import Given
from cpfl.distillation.distil import distil
from cpfl.distillation.judges import JUDGES
from cpfl.experiment import Experiment
from cpfl.opening import given_arrays, reopen
from cpfl.problem import Problem, prepare
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state

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
    "cohorting.models": {"1": "test_models_by_cohort:Deep", "2": "test_models_by_cohort:Deep"},
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


def problem(**settings: Any) -> Problem:
    return prepare(experiment(**settings), [], Given())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same experiment with every engine."""
    folder = tmp_path_factory.mktemp("runs")
    for engine in ("reference", "workers", "lanes"):
        cpfl.run(experiment(), out=folder / engine, engine=engine, device="cpu", workers=2)
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
            assert line.pop("participants") == other.pop("participants")
            assert line == pytest.approx(other)


def test_each_cohort_has_its_own_model_and_start(runs: dict[str, Path]) -> None:
    folder = RunFolder.open(runs["reference"])
    names = [set(load_state(folder.teacher(cohort))) for cohort in range(3)]
    assert names[0] == set(problem().start)
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


def test_teachers_are_asked_each_with_its_own_module(runs: dict[str, Path]) -> None:
    """The ensemble's accuracy against the weighted sum of logits written out here."""
    folder = RunFolder.open(runs["reference"])
    ours = problem()
    data = ours.data
    x, y = data.transform(torch.as_tensor(data.test.x)), torch.as_tensor(data.test.y)
    counts = torch.stack([torch.as_tensor(data.counts[clients].sum(axis=0)) for clients in ours.plan]).double()
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
    again = reopen(folder, None, None, given_arrays(None, None, None), lambda text: None)
    for cohort in (1, 2):
        stored = load_state(folder.own_start(cohort))
        assert all(torch.equal(value, stored[name]) for name, value in again.of(cohort).start.items())


@pytest.mark.parametrize("judge", ["ensemble", "public"])
def test_the_joint_rule_judges_and_pays_for_all_models(judge: str) -> None:
    ours = problem(stopping__rule="joint", stopping__judge=judge)
    seen = JUDGES[judge](ours, ours.experiment.distillation, torch.device("cpu"))
    sizes = [ours.of(cohort).model_bytes for cohort in range(3)]
    if judge == "public":
        assert seen.cost().bytes == sum(sizes)
    else:
        held = ours.data.clients.validation_sizes
        asked = [sum(bool(held[k]) for k in clients) for clients in ours.plan]
        down = sum(count * (sum(sizes) - own) for count, own in zip(asked, sizes, strict=True))
        assert seen.cost().bytes == sum(sizes) + down
    assert 0 <= seen.look([ours.of(cohort).start for cohort in range(3)]).value <= 100


def test_distilling_starts_of_one_model_is_as_before() -> None:
    """A cohort that names the experiment's own architecture changes nothing."""
    plain = problem(cohorting__models={})
    named = problem(cohorting__models={"1": "mlp"})
    settings, cpu = plain.experiment.distillation, torch.device("cpu")
    outcomes = [
        distil(p, lambda p=p: iter([p.of(i).start for i in range(3)]), [0, 1, 2], settings, cpu, lambda record: None)
        for p in (plain, named)
    ]
    assert all(torch.equal(value, outcomes[1].student[name]) for name, value in outcomes[0].student.items())


def test_the_experiments_own_model_by_name_is_the_same_model() -> None:
    """With its arguments and its size on the wire; another one has its own defaults."""
    own = {"model__args": {"hidden": 8}, "model__bytes": 346_000}
    named = problem(cohorting__models={"1": "mlp", "2": "femnist-cnn"}, **own)
    assert named.of(1).model_bytes == named.model_bytes == 346_000
    assert named.of(2).model_bytes == 4 * sum(value.numel() for value in named.of(2).start.values())
    assert named.start.keys() == named.of(1).start.keys()
    assert all(torch.equal(value, named.of(1).start[name]) for name, value in named.start.items())


def test_the_experiments_own_model_by_name_is_exported(tmp_path: Path) -> None:
    """Alone, a cohort's model is the result: it is built with the experiment's arguments there too."""
    settings = {"model__args": {"hidden": 8}, "cohorts": 1, "cohorting__models": {"0": "mlp"}}
    run = cpfl.run(experiment(**settings), out=tmp_path / "run", engine="reference", device="cpu")
    cpfl.export(run.path, tmp_path / "model", onnx=False)
    assert load_state(tmp_path / "model" / "model.safetensors")["1.weight"].shape == (8, 64)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("cohorting.models.4=mlp", "cohorting.models names cohort '4': cohorts are 0 to 3"),
        ("cohorting.models.first=mlp", "cohorting.models names cohort 'first': cohorts are 0 to 3"),
        ("cohorting.models.0=mpl", "cohorting.models.0 = 'mpl' is unknown; did you mean mlp?"),
        ("cohorting.models.0=gn-lenet", "model gn-lenet takes images of 15×15 or more"),
    ],
)
def test_mistakes(cpfl_command: Command, tmp_path: Path, setting: str, told: str) -> None:
    answer = cpfl_command("run", "digits", "--set", setting, "--out", tmp_path / "run")
    assert answer.code == 2
    assert told in answer.err
    assert not (tmp_path / "run").exists()


def test_from_the_command_line(cpfl_command: Command, tmp_path: Path) -> None:
    words = ("--set", "cohorting.models.0=femnist-cnn", "--set", "clients=8", "--set", "data.train_limit=200")
    quick = ("--set", "max_rounds=2", "--set", "distillation.epochs=1", "--out", tmp_path / "run")
    cpfl_command("run", "digits", *words, *quick).good()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["cohort_model_bytes"]["0"] != about["model_bytes"]
    assert RunFolder.open(tmp_path / "run").experiment().cohorting.models == {"0": "femnist-cnn"}
