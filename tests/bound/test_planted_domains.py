"""Divergence and λ where the answer is known: data made for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cpfl.bounds.divergence import by_classifier, by_labels
from cpfl.bounds.domains import Domains, joined
from cpfl.bounds.joint import joint_risks
from cpfl.distillation.ensemble import Precision
from cpfl.errors import DataError
from cpfl.settings import Experiment
from cpfl.task.loading import given_arrays, load_task

WIDTH = 8
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def blobs(count: int, classes: tuple[int, ...], shift: float, seed: int) -> Arrays:
    """Samples far apart by class; `shift` moves them all."""
    rng = np.random.default_rng(seed)
    y = np.resize(np.array(classes), count)
    x = rng.normal(0, 0.1, (count, WIDTH)) + shift
    x[np.arange(count), y] += 3
    return x.astype(np.float32), y


def domains(train: list[Arrays], test: Arrays, outputs: int = 4, net: nn.Module | None = None, **model: Any) -> Domains:
    """The domains of a task in which every client has one of these sets."""
    net = net or nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, outputs))
    experiment = Experiment(
        clients=len(train),
        cohorts=1,
        seed=3,
        model={"name": "given", **model},
        data={"train": "given", "public": "given", "split": "column", "column": "owner", "validation": 0.0},
        devices={"trace": "synthetic"},
    )
    owner = np.repeat(np.arange(len(train)), [len(y) for _, y in train])
    x, y = np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])
    given = given_arrays((x, y, {"owner": owner}), test, test[0][:4], experiment)
    task = load_task(experiment, None, net, given, lambda text: None)
    return Domains(task, Precision(torch.device("cpu"), "float32"))


EVERY = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def same() -> Domains:
    """Two clients and a target of one distribution."""
    return domains([blobs(80, EVERY, 0, 1), blobs(80, EVERY, 0, 2)], blobs(160, EVERY, 0, 3))


def test_identical_distributions(same: Domains) -> None:
    """A classifier can only guess: ε is within sampling error (here 0.05) of a half."""
    assert by_labels(same) == [0, 0]
    assert max(by_classifier(same)) < 0.4


def test_a_perfect_joint_model(same: Domains) -> None:
    assert joint_risks(same) == [0, 0]


def test_disjoint_distributions() -> None:
    """Clients of other labels and other inputs than the target's, and one that is like it."""
    train = [blobs(80, (0, 1), 5, 1), blobs(80, (2, 3), 0, 2)]
    found = domains(train, blobs(80, (2, 3), 0, 3))
    assert by_labels(found) == [2, 0]
    far, near = by_classifier(found)
    assert far == 2
    assert near < 0.6


def test_labels_that_contradict_each_other() -> None:
    """The target calls 0 what the client calls 1, and the other way round: every model errs on one or the other."""
    (x, y), (test_x, test_y) = blobs(200, (0, 1), 0, 1), blobs(400, (0, 1), 0, 2)
    (risk,) = joint_risks(domains([(x, 1 - y)], (test_x, test_y), 2))
    assert risk == pytest.approx(1, abs=0.05)


def test_a_client_with_one_sample() -> None:
    """It cannot be both trained on and measured: the largest divergence; λ by the model that has not seen it."""
    found = domains([blobs(1, (0,), 0, 1), blobs(80, EVERY, 0, 2)], blobs(80, EVERY, 0, 3))
    assert by_classifier(found)[0] == 2
    assert joint_risks(found) == [0, 0]


def test_halves_share_no_sample(same: Domains) -> None:
    for rows, (first, second) in zip(same.clients, same.halves, strict=True):
        assert sorted([*first, *second]) == sorted(rows)
        assert abs(len(first) - len(second)) <= 1
    assert sorted([*same.target_trains, *same.target_measures]) == list(range(160))


@pytest.mark.parametrize(("objective", "outputs"), [("binary", 1), ("multi-label", 2)])
def test_other_objectives(objective: str, outputs: int) -> None:
    """Yes or no: the domain classifier works with one output too."""
    x, y = blobs(80, (0, 1), 0, 1)
    labels = y if objective == "binary" else np.stack([y, 1 - y], axis=1)
    found = domains([(x, labels)], (x + 5, labels), outputs, objective=objective)
    assert by_labels(found) == [0]
    assert by_classifier(found) == [2]
    assert joint_risks(found)[0] <= 0.2


def test_a_class_at_every_position() -> None:
    """Positions without a label are in no term; a client without any label is refused."""

    class Each(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x.unsqueeze(-1))
            return out

    x = np.random.default_rng(1).choice([-1.0, 1.0], (40, 3)).astype(np.float32)
    y = (x > 0).astype(np.int64)
    y[:, 2] = -100
    experiment = Experiment(
        clients=1,
        cohorts=1,
        model={"name": "given", "objective": "per-position"},
        data={"train": "given", "public": "given", "split": "iid", "validation": 0.0},
        devices={"trace": "synthetic"},
    )

    def made(labels: np.ndarray[Any, Any]) -> Domains:
        given = given_arrays((x, labels), (x, y), x[:4], experiment)
        task = load_task(experiment, None, Each(), given, lambda text: None)
        return Domains(task, Precision(torch.device("cpu"), "float32"))

    found = made(y)
    assert by_labels(found)[0] < 1e-9
    assert by_classifier(found)[0] < 0.6
    assert joint_risks(found)[0] < 0.2
    y_train = np.full_like(y, -100)
    y_train[0, 0] = 1
    assert [len(rows) for rows in made(y_train).clients] == [1]


def test_a_model_that_draws_is_the_same_again() -> None:
    """Dropout is seeded by address: what torch drew before changes nothing."""
    net = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    found = domains([blobs(30, EVERY, 0, 1), blobs(20, (0, 1), 1, 2)], blobs(60, EVERY, 0, 3), net=net)
    first = by_classifier(found), joint_risks(found)
    torch.rand(7)
    assert (by_classifier(found), joint_risks(found)) == first


def test_one_test_sample_is_too_few() -> None:
    with pytest.raises(DataError, match="the test set has 1 sample with a label: the bound needs two or more"):
        domains([blobs(20, EVERY, 0, 1)], blobs(1, (3,), 0, 2))


def test_batches_of_several_inputs_are_joined() -> None:
    a, b = torch.zeros(1, 2), torch.ones(2, 2)
    whole = torch.cat([a, b])
    assert torch.equal(joined(a, b), whole)  # type: ignore[arg-type]
    assert torch.equal(joined({"x": a}, {"x": b})["x"], whole)  # type: ignore[call-overload, index]
    assert torch.equal(joined((a, a), (b, b))[1], whole)
