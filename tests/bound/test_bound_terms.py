"""The terms of the bound, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cpfl
from cpfl.bounds.divergence import label_distance, proxy_a_distance
from cpfl.bounds.hoeffding import check_delta, hoeffding
from cpfl.bounds.risk import losses, with_classes
from cpfl.bounds.theorem import Source, terms
from cpfl.bounds.weights import scalar_weights
from cpfl.errors import SettingError
from cpfl.objectives.classes import Classification, PerPosition
from cpfl.objectives.labels import MultiLabel
from cpfl.objectives.regression import Regression
from cpfl.privacy.label_counts import HIDDEN
from cpfl.settings import Distillation


def test_hoeffding_to_the_digit() -> None:
    """√(ln(2·40 / 0.05) / (2·50)) = √(ln 1600 / 100) = √0.0737775890822787."""
    assert hoeffding(50, 40, 0.05) == pytest.approx(0.2716203031, abs=1e-10)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, float("nan"), float("inf")])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(SettingError, match=r"delta = .* is not allowed: a number between 0 and 1"):
        check_delta(delta)


def test_the_sum_of_equal_cohorts_is_the_printed_one() -> None:
    """n = 2 cohorts of K = 2 clients with m = 30 samples each, with the formula of the appendix written out."""
    sources = [[Source(0.1, 0.4, 0.3, 30), Source(0.2, 1.0, 0.5, 30)], [Source(0.0, 2.0, 0.7, 30)] * 2]
    p, n, K, m, delta = (0.25, 0.75), 2, 2, 30, 0.1
    risk = sum(p[i] / K * sources[i][k].risk for i in range(n) for k in range(K))
    rest = sum(p[i] / K * (sources[i][k].divergence / 2 + sources[i][k].joint) for i in range(n) for k in range(K))
    own = terms(p, sources, delta)
    last = np.sqrt(np.log(2 * n * K / delta) / (2 * m))
    assert own.bound == pytest.approx(risk + rest + last, abs=1e-12)
    assert own.bound == pytest.approx(own.risk + own.half_divergence + own.joint + own.hoeffding, abs=1e-12)
    assert own.bound_in_body == pytest.approx(risk + rest / 2 + last, abs=1e-12)


def test_unequal_cohorts_and_clients() -> None:
    """A cohort of one client and one of two; every client has the Hoeffding term of its own samples, of M = 3."""
    own = terms([0.5, 0.5], [[Source(0.4, 0, 0, 10)], [Source(0.1, 0, 0, 20), Source(0.3, 0, 0, 80)]], 0.05)
    assert own.risk == pytest.approx(0.5 * 0.4 + 0.5 * 0.2)
    each = [np.sqrt(np.log(2 * 3 / 0.05) / (2 * m)) for m in (10, 20, 80)]
    assert own.hoeffding == pytest.approx(0.5 * each[0] + 0.25 * each[1] + 0.25 * each[2])


def test_the_proxy_of_a_divergence() -> None:
    assert [proxy_a_distance(error) for error in (0.0, 0.25, 0.5, 0.7)] == [2.0, 1.0, 0.0, 0.0]


def test_the_distance_of_label_shares() -> None:
    assert label_distance(np.array([5, 5]), np.array([50, 50])) == 0
    assert label_distance(np.array([5, 5, 0]), np.array([0, 0, 9])) == 2
    assert label_distance(np.array([3, 1]), np.array([1, 1])) == pytest.approx(0.5)


def test_scalar_weights() -> None:
    """The share of labels; 1/n for uniform weights; a cohort that hides its counts has 1/n."""
    counts = np.array([[10, 0, 5], [20, 30, 35]])
    labels = Distillation(weights="labels")
    assert scalar_weights(labels, counts, [0, 1]) == pytest.approx([0.15, 0.85])
    assert scalar_weights(labels, counts, [1]) == pytest.approx([1])
    assert scalar_weights(Distillation(weights="uniform"), counts, [0, 1]) == pytest.approx([0.5, 0.5])
    hidden = np.array([[10, 0, 5], [20, 30, 35], [HIDDEN] * 3])
    assert scalar_weights(labels, hidden, [0, 1, 2]) == pytest.approx([0.15 * 2 / 3, 0.85 * 2 / 3, 1 / 3])
    assert scalar_weights(labels, hidden[2:], [0]) == pytest.approx([1])


class Extrapolated(cpfl.TeacherWeights):
    """Weights that leave the range of averages."""

    def weights(self, counts_NC: np.ndarray[Any, Any], known_N: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.stack([np.full(counts_NC.shape[1], 1.5), np.full(counts_NC.shape[1], -0.5)])


def test_a_negative_weight_is_refused() -> None:
    settings = Distillation(weights=f"{__name__}:Extrapolated")
    with pytest.raises(SettingError, match=r"gives a cohort the weight -0\.5: the bound needs weights of at least 0"):
        scalar_weights(settings, np.ones((2, 3), np.int64), [0, 1])


def test_losses_are_shares_of_wrong_items() -> None:
    answers, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    assert losses(Classification(), answers, y).tolist() == [0, 1, 0]
    positions = torch.tensor([[[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]])
    assert losses(PerPosition(), positions, torch.tensor([[0, 1, -100]])).tolist() == [0.5]
    assert losses(MultiLabel(), torch.tensor([[1.0, -1.0, 1.0, 1.0]]), torch.tensor([[1, 0, 0, 1]])).tolist() == [0.25]


def test_numbers_to_predict_are_refused() -> None:
    with pytest.raises(SettingError, match=r"model\.objective = 'regression' has no classes"):
        with_classes(Regression(), "regression")
