"""What a deployed run may be told, and what it is told that it may not."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="cpfl[flower] is not installed")

from cpfl.deploy import settings
from cpfl.errors import SettingError


def test_settings_of_the_run_and_of_the_experiment_are_told_apart() -> None:
    experiment, run = settings.read("digits", {"cohorts": 2, "wait-seconds": 5, "set": "seed=7 federation.lr=0.5"})
    assert (experiment.cohorts, experiment.seed, experiment.federation.lr) == (2, 7, 0.5)
    assert run.wait_seconds == 5.0


def test_a_rule_that_sees_validation_samples_is_refused() -> None:
    with pytest.raises(SettingError, match="allowed here: plateau, rounds, budget"):
        settings.read("digits", {"set": "stopping.rule=joint"})


def test_a_key_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(SettingError, match="wait-seconds = 'soon'"):
        settings.read("digits", {"wait-seconds": "soon"})
