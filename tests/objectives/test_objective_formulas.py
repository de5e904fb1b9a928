"""Losses, metrics, counts and links of objectives against formulas in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from cpfl.errors import DataError, SettingError
from cpfl.objectives.base import Objective, objective
from cpfl.objectives.links import NUMBERS, SIGMOID, SOFTMAX, fitting_temperature
from cpfl.settings import Model

RNG = np.random.default_rng(0)
Array = NDArray[Any]


def of(name: str, **args: Any) -> Objective:
    return objective(Model(objective=name, objective_args=args))


def log_softmax(z: Array) -> Array:
    return np.asarray(z - np.log(np.exp(z).sum(-1, keepdims=True)))


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


Z, Z1, ZT = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 1)), RNG.normal(size=(6, 4, 3))
Y, YES, SEVERAL, NUMBERS_TO_PREDICT = np.array([0, 2, 1, 1, 0, 2]), Z1 > 0.2, Z + 0.3 > 0, RNG.normal(size=(6, 3))
PLACES = RNG.integers(0, 3, (6, 4))
PLACES[0, 1:] = PLACES[2] = -100  # one sample has a single label, one has none


def position_losses() -> list[float]:
    found = []
    for z, y in zip(log_softmax(ZT), PLACES, strict=True):
        own = [-z[place, label] for place, label in enumerate(y) if label != -100]
        found.append(sum(own) / len(own) if own else 0.0)
    return found


def cross_entropies(z: Array, yes: Array) -> Array:
    p = sigmoid(z)
    return np.asarray(-np.where(yes, np.log(p), np.log(1 - p)).mean(-1))


CASES: dict[str, tuple[Array, Array, Any]] = {
    "classification": (Z, Y, -log_softmax(Z)[np.arange(6), Y]),
    "per-position": (ZT, PLACES, position_losses()),
    "binary": (Z1, YES, cross_entropies(Z1, YES)),
    "multi-label": (Z, SEVERAL, cross_entropies(Z, SEVERAL)),
    "regression": (Z, NUMBERS_TO_PREDICT, ((Z - NUMBERS_TO_PREDICT) ** 2).mean(-1)),
}


def tensors(name: str) -> tuple[Objective, Tensor, Tensor]:
    own, (z, y, _) = of(name), CASES[name]
    return own, torch.from_numpy(z), torch.from_numpy(own.labels(y, "test", "float64"))


@pytest.mark.parametrize("name", CASES)
def test_losses(name: str) -> None:
    own, z, y = tensors(name)
    expected = torch.tensor(np.asarray(CASES[name][2]))
    torch.testing.assert_close(own.losses(z, y), expected)
    torch.testing.assert_close(own.loss(z, y), expected.mean())
    torch.testing.assert_close(own.loss(z, y, "sum"), expected.sum())
    torch.testing.assert_close(vmap(own.losses)(torch.stack([z, -z]), torch.stack([y, y]))[0], expected)


def test_scores() -> None:
    right = [z.argmax() == y for z, y in zip(ZT.reshape(-1, 3), PLACES.flatten(), strict=True) if y != -100]
    residual, spread = ((Z - NUMBERS_TO_PREDICT) ** 2).sum(0), 6 * NUMBERS_TO_PREDICT.var(0)
    expected = {
        "classification": (Z.argmax(1) == Y).mean(),
        "per-position": np.mean(right),
        "binary": ((Z1 > 0) == YES).mean(),
        "multi-label": ((Z > 0) == SEVERAL).mean(),
        "regression": (1 - residual / spread).mean(),
    }
    for name in CASES:
        own, z, y = tensors(name)
        assert own.score(z, y) == pytest.approx(100 * expected[name]), name
    own, z, y = of("multi-label", metric="f1"), *tensors("multi-label")[1:]
    both, either = ((Z > 0) & SEVERAL).sum(), (Z > 0).sum() + SEVERAL.sum()
    assert own.score(z, y) == pytest.approx(100 * 2 * both / either)
    assert own.metric == "F1"


def test_scores_by_class() -> None:
    own, z, y = tensors("classification")
    expected = [100 * (Z[label == Y].argmax(1) == label).mean() for label in range(3)]
    assert own.scores_by_class(z, y, 4) == [*map(pytest.approx, expected), None]
    own, z, y = tensors("binary")
    expected = [100 * ((Z1 > 0) == YES)[answer == YES].mean() for answer in (False, True)]
    assert own.scores_by_class(z, y, 2) == [*map(pytest.approx, expected)]
    own, z, y = tensors("regression")
    spread = ((NUMBERS_TO_PREDICT - NUMBERS_TO_PREDICT.mean(0)) ** 2).sum(0)
    expected = 100 * (1 - ((Z - NUMBERS_TO_PREDICT) ** 2).sum(0) / spread)
    assert own.scores_by_class(z, y, 3) == [*map(pytest.approx, expected)]


@pytest.mark.parametrize("name", CASES)
def test_scores_by_group(name: str) -> None:
    """Of the samples of each group alone; a group without samples has none, nor one whose samples have no label."""
    own, z, y = tensors(name)
    owner = np.array([3, 3, 1, 0, 0, 0])
    found = own.scores_by_group(z, y, owner, 5)
    for group in (0, 3):
        part = torch.from_numpy(np.flatnonzero(owner == group))
        assert found[group] == pytest.approx(own.score(z[part], y[part]))
    assert found[2] is found[4] is None
    assert (found[1] is None) == (name in ("per-position", "regression"))  # one sample: no label, or no variance


def test_what_is_counted() -> None:
    counted = {name: of(name).counted(of(name).labels(y, "test")) for name, (_, y, _) in CASES.items()}
    columns = {name: of(name).classes({"test": of(name).labels(y, "test")}, 0) for name, (_, y, _) in CASES.items()}
    assert columns == {"classification": 3, "per-position": 3, "binary": 2, "multi-label": 6, "regression": 3}
    found = {name: np.bincount(c[c >= 0], minlength=columns[name]).tolist() for name, c in counted.items()}
    assert found["classification"] == [2, 2, 2]
    assert found["per-position"] == [int((label == PLACES).sum()) for label in range(3)]
    assert found["binary"] == [int((~YES).sum()), int(YES.sum())]
    assert found["multi-label"] == [int((answer == SEVERAL[:, k]).sum()) for k in range(3) for answer in (False, True)]
    assert found["regression"] == [6, 6, 6]


def test_weights_of_outputs() -> None:
    """Of yes and no, the mean of both shares; of all others, the shares themselves."""
    weights = np.array([[0.9, 0.2, 0.5, 0.1], [0.1, 0.8, 0.5, 0.9]])
    for name in ("classification", "per-position", "regression"):
        assert of(name).output_weights(weights).tolist() == weights.tolist()
    np.testing.assert_allclose(of("multi-label").output_weights(weights), [[0.55, 0.3], [0.45, 0.7]])


def test_how_far_a_sample_moves_the_counts() -> None:
    """In Euclidean distance: 1 for one class, √L for L labels; all positions may add to one count."""
    shapes = {"classification": (), "binary": (1,), "multi-label": (9,), "regression": (4,), "per-position": (5,)}
    found = {name: of(name).sensitivity(shape) for name, shape in shapes.items()}
    assert found == {"classification": 1, "binary": 1, "multi-label": 3, "regression": 2, "per-position": 5}


def test_links() -> None:
    z, q = torch.from_numpy(ZT), torch.softmax(torch.from_numpy(RNG.normal(size=ZT.shape)), -1)
    student, goal = log_softmax(ZT), q.numpy()
    kl = (goal * (np.log(goal) - student)).sum(-1).mean()
    assert SOFTMAX.kl(z, q).item() == pytest.approx(kl)
    assert SOFTMAX.entropy(q) == pytest.approx(-(goal * np.log(goal)).sum(-1).mean())
    p = sigmoid(ZT)
    kl = (goal * np.log(goal / p) + (1 - goal) * np.log((1 - goal) / (1 - p))).mean()
    assert SIGMOID.kl(z, q).item() == pytest.approx(kl)
    assert SIGMOID.entropy(q) == pytest.approx(-(goal * np.log(goal) + (1 - goal) * np.log(1 - goal)).mean())
    torch.testing.assert_close(SIGMOID.answers(SIGMOID.probabilities(z)), z)
    torch.testing.assert_close(SIGMOID.sharpened(SIGMOID.probabilities(z), 0.5), SIGMOID.probabilities(2 * z))
    assert SIGMOID.answers(torch.tensor([0.0, 1.0])).isfinite().all()
    assert not NUMBERS.has_probabilities


@pytest.mark.parametrize("link", [SOFTMAX, SIGMOID])
def test_sharpening_reaches_the_entropy(link: Any) -> None:
    flat = link.probabilities(torch.from_numpy(RNG.normal(size=(200, 5))))
    most = math.log(5) if link is SOFTMAX else math.log(2)
    sharp = link.sharpened(flat, fitting_temperature(link, flat, 0.4))
    assert link.entropy(sharp) == pytest.approx(0.4 * most, abs=0.01)


@pytest.mark.parametrize(
    ("name", "y", "words"),
    [
        ("classification", np.zeros((4, 2), int), "integers, one for each sample; these are int64 of shape (4, 2)"),
        ("classification", np.zeros(4), "integers, one for each sample; these are float64"),
        ("per-position", np.zeros(4, int), "integers of shape (samples, positions)"),
        ("binary", np.array([0, 1, 2]), "0 or 1, one for each sample"),
        ("binary", np.zeros((4, 2), int), "0 or 1, one for each sample"),
        ("multi-label", np.array([[0, 3]]), "0 or 1, of shape (samples, labels)"),
        ("regression", np.zeros((4, 2, 2)), "numbers of shape (samples,) or (samples, outputs)"),
        ("regression", np.array([0.0, np.nan]), "not finite"),
        ("regression", np.array([0.0, 1e300]), "not finite"),
    ],
)
def test_labels_that_are_refused(name: str, y: Array, words: str) -> None:
    with pytest.raises(DataError) as error:
        of(name).labels(y, "training")
    assert words in str(error.value)


def test_sets_that_are_refused() -> None:
    same, other = np.ones((3, 2)), np.ones((3, 1))
    with pytest.raises(DataError, match="different shapes"):
        of("regression").classes({"training": same, "test": other}, 0)
    with pytest.raises(DataError, match="all the same: R² has no meaning"):
        of("regression").classes({"training": same, "test": same}, 0)
    with pytest.raises(DataError, match="F1 has no meaning"):
        of("multi-label", metric="f1").classes({"training": same, "test": 0 * same}, 0)
    with pytest.raises(DataError, match="no label that is counted"):
        of("per-position").classes({"training": np.full((2, 2), -100)}, 0)
    with pytest.raises(DataError, match="is -1: labels count from 0"):
        of("per-position").classes({"training": np.array([[1, -1]])}, 0)


def test_arguments_that_are_refused() -> None:
    with pytest.raises(SettingError, match=r"model\.objective_args\.metric = 'auc' is not allowed: accuracy or f1"):
        of("multi-label", metric="auc")
    with pytest.raises(SettingError, match="did you mean regression"):
        Model(objective="regresion")
