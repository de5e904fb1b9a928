"""What a cohort's label counts reveal, and the weights of a cohort that reveals nothing."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import small_runs

import cpfl
from cpfl.distillation.objective import teacher_weights
from cpfl.errors import SettingError
from cpfl.privacy.label_counts import HIDDEN, client_noise, cohort_counts, deviation, from_rows, to_rows
from cpfl.settings import Distillation, Privacy

QUICK = {"max_rounds": 2, "distillation.epochs": 1, "clients": 8}
COUNTS = np.random.default_rng(0).integers(0, 30, (8, 5))
COHORTS = [[0, 3, 5], [1, 2, 4, 6], [7]]


def test_masked_and_plain_are_the_same_sums() -> None:
    pytest.importorskip("cryptography")
    plain = cohort_counts(COUNTS.__getitem__, 5, COHORTS, Privacy(), seed=1)
    assert (plain == [COUNTS[group].sum(axis=0) for group in COHORTS]).all()
    assert (cohort_counts(COUNTS.__getitem__, 5, COHORTS, Privacy(label_counts="masked"), seed=1) == plain).all()


def test_a_run_with_masked_counts_is_the_same_run(tmp_path: Path) -> None:
    """Same weights, same student, to the bit."""
    pytest.importorskip("cryptography")
    runs = [
        cpfl.run("digits", settings={**QUICK, "privacy.label_counts": kind}, engine="reference", out=tmp_path / kind)
        for kind in ("plain", "masked")
    ]
    one, other = (small_runs.content(run.path / "models" / "global.safetensors") for run in runs)
    assert one == other


def test_a_cohort_too_small_is_hidden(tmp_path: Path) -> None:
    """n = M with privacy.min_clients: nobody's counts are in the run folder, all weights are uniform."""
    settings = {**QUICK, "cohorts": 8, "privacy.min_clients": 2}
    run = cpfl.run("digits", settings=settings, engine="reference", out=tmp_path / "run")
    about = json.loads((run.path / "run.json").read_text())
    assert about["label_counts"] == [None] * 8
    uniform = cpfl.run(
        "digits", settings={**settings, "distillation.weights": "uniform"}, engine="reference", out=tmp_path / "u"
    )
    assert run.summary["ensemble_accuracy"] == uniform.summary["ensemble_accuracy"]


def test_weights_with_a_hidden_cohort() -> None:
    """It gets 1/n of every class, the others share the rest; columns sum to 1."""
    counts = np.array([[10, 0, 0], [HIDDEN] * 3, [30, 5, 0]])
    weights = teacher_weights(Distillation(weights="labels"), counts, [0, 1, 2])
    assert np.allclose(weights.sum(axis=0), 1)
    assert np.allclose(weights[1], 1 / 3)
    assert np.allclose(weights[:, 0], [2 / 3 * 10 / 40, 1 / 3, 2 / 3 * 30 / 40])
    assert np.allclose(weights[:, 2], 1 / 3)
    assert (from_rows(to_rows(counts), 3) == counts).all()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (4.0, 1e-6)])
def test_the_deviation_gives_the_promised_privacy(epsilon: float, delta: float) -> None:
    """Measured with the exact condition for Gaussian noise (Balle & Wang 2018), which ours implies."""
    sigma = deviation(epsilon, delta)

    def phi(x: float) -> float:
        return (1 + math.erf(x / math.sqrt(2))) / 2

    exact = phi(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * phi(-1 / (2 * sigma) - epsilon * sigma)
    assert 0 < exact <= delta


def test_noise_has_the_deviation_it_should() -> None:
    """Shares of seven of twelve clients make the whole noise."""
    source, size, privacy = random.Random(4), 4000, Privacy(epsilon=1.0, delta=1e-5)
    total = sum(client_noise(privacy, 12, size, source) for _ in range(7))
    assert abs(np.std(total) / deviation(1.0, 1e-5) - 1) < 0.05
    assert abs(np.mean(total)) < 4 * deviation(1.0, 1e-5) / math.sqrt(size)


def test_noisy_counts_are_kept_not_drawn_again(tmp_path: Path) -> None:
    """The same seed gives the same noise, and a later distillation uses the counts that were reported to the run."""
    settings = {**QUICK, "cohorts": 2, "privacy.epsilon": 0.5}
    run = cpfl.run("digits", settings=settings, engine="reference", out=tmp_path / "run")
    reported = json.loads((run.path / "run.json").read_text())["label_counts"]
    plain = cpfl.run("digits", settings={**settings, "privacy.epsilon": 0}, engine="reference", out=tmp_path / "plain")
    assert reported != json.loads((plain.path / "run.json").read_text())["label_counts"]
    again = cpfl.distill(run.path)
    assert again["ensemble_accuracy"] == run.summary["ensemble_accuracy"]


@pytest.mark.parametrize(
    ("key", "value"), [("privacy.delta", 0), ("privacy.epsilon", -1), ("privacy.label_counts", "x")]
)
def test_settings_that_are_refused(key: str, value: object) -> None:
    with pytest.raises(SettingError, match=key):
        cpfl.run("digits", settings={key: value})
