"""Whole small runs in float64 equal the numpy implementation in tests/reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cpfl
from cpfl import models
from cpfl.devices.fleet import fleet as draw_fleet
from cpfl.runs.folder import RunFolder, load_state
from reference import algorithm

MODEL_BYTES = 1_000
REASONS = {"plateau": "plateau", "no validation signal": "no signal", "max rounds": "max rounds"}


class Net(nn.Sequential):
    """The network of the reference: one hidden layer with tanh."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return rng.normal(size=(count, 6)) + 1.2 * np.eye(3, 6)[y], y


def start_of(folder: RunFolder, seed: int, purpose: str) -> dict[str, np.ndarray]:
    state = models.state_of(models.fresh(Net, seed, purpose, torch.float64))
    if purpose == "init":
        for name, value in load_state(folder.model("start")).items():
            assert torch.equal(value, state[name])
    return {name: value.numpy() for name, value in state.items()}


BASE = {
    "clients": 10,
    "cohorts": 3,
    "seed": 3,
    "max_rounds": 30,
    "precision": "float64",
    "federation.batch_size": 8,
    "federation.lr": 0.05,
    "federation.momentum": 0.9,
    "stopping.patience": 6,
    "stopping.window": 4,
    "distillation.recipe": "paper",
    "distillation.epochs": 6,
    "distillation.batch_size": 16,
    "distillation.lr": 0.01,
    "model.bytes": MODEL_BYTES,
}
SKEWED = {"data.alpha": 0.5}
CASES = {
    "three cohorts": SKEWED,
    "plain FL": SKEWED | {"cohorts": 1},
    "one-shot": SKEWED | {"cohorts": 10},
    "iid, by samples, partial": {
        "data.split": "iid",
        "federation.weights": "samples",
        "federation.participation": 0.4,
        "seed": 5,
    },
    "steps, no momentum, uniform": {
        "data.split": "shards",
        "federation.local_steps": 3,
        "federation.momentum": 0.0,
        "distillation.weights": "uniform",
        "stopping.keep": "last",
    },
    "spread, two epochs": {"data.remainder": "spread", "federation.local_epochs": 2, "data.alpha": 0.05, "seed": 11},
    "two rounds": SKEWED | {"max_rounds": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_whole_run(case: str, tmp_path: Path) -> None:
    chosen = BASE | CASES[case]
    x, y = points(1, 160)
    x_test, y_test = points(2, 60)
    x_public, _ = points(7, 50)
    run = cpfl.run(
        cpfl.Experiment(),
        model=Net,
        train=(x, y),
        test=(x_test, y_test),
        public=x_public,
        out=tmp_path / "run",
        settings=chosen,
    )
    folder = RunFolder.open(run.path)
    experiment = run.experiment
    fleet = draw_fleet(experiment.devices, experiment.clients, experiment.seed, [])
    federation, distillation = experiment.federation, experiment.distillation
    expected = algorithm.run(
        algorithm.Settings(
            clients=experiment.clients,
            cohorts=experiment.cohorts,
            seed=experiment.seed,
            max_rounds=experiment.max_rounds,
            split=experiment.data.split,
            alpha=experiment.data.alpha,
            shards=experiment.data.shards,
            remainder=experiment.data.remainder,
            participation=federation.participation,
            local_epochs=federation.local_epochs,
            local_steps=federation.local_steps or None,
            batch_size=federation.batch_size,
            lr=federation.lr,
            momentum=federation.momentum,
            weights=federation.weights,
            patience=experiment.stopping.patience,
            window=experiment.stopping.window,
            keep=experiment.stopping.keep,
            epochs=distillation.epochs,
            distill_batch_size=distillation.batch_size,
            distill_lr=distillation.lr,
            distill_weights=distillation.weights,
            model_bytes=MODEL_BYTES,
        ),
        x,
        y,
        3,
        x_test,
        y_test,
        x_public,
        fleet.compute_ms,
        fleet.network_kbps,
        start_of(folder, experiment.seed, "init"),
        start_of(folder, experiment.seed, "student"),
    )

    assert folder.about()["cohorts"] == expected.cohorts
    for cohort, records in enumerate(expected.rounds):
        ours = [line for line in run.rounds if line["cohort"] == cohort]
        assert [line["participants"] for line in ours] == [record["participants"] for record in records]
        for line, record in zip(ours, records, strict=True):
            for key, name in (("validation", "loss"), ("moving_average", "moving_average"), ("seconds", "seconds")):
                wanted = record[name]
                assert line[key] == (None if wanted is None else pytest.approx(wanted, rel=0, abs=1e-9))
            for key in ("clock", "cpu_seconds", "bytes"):
                assert line[key] == pytest.approx(record[key], rel=1e-12)
        assert REASONS[ours[-1]["stop"]] == expected.stop_reasons[cohort]
        assert not any(line["stop"] for line in ours[:-1])
        assert_equal(load_state(folder.teacher(cohort)), expected.teachers[cohort])
    assert_equal(run.model, expected.student)

    summary = run.summary
    for key in (
        "student_accuracy",
        "teacher_accuracy_mean",
        "teacher_accuracy_std",
        "ensemble_accuracy",
        "hours",
        "cpu_hours",
        "comm_gb",
    ):
        assert summary[key] == pytest.approx(getattr(expected, key), rel=1e-12, abs=1e-9), key
    assert summary["rounds"] == expected.rounds_total


def assert_equal(state: dict[str, torch.Tensor], expected: dict[str, np.ndarray]) -> None:
    assert state.keys() == expected.keys()
    for name, value in state.items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=0, atol=1e-9)
