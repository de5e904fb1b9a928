"""The run config of a deployed run, and the settings that it refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="cpfl[flower] is not installed")

from cpfl.deploy import run_config
from cpfl.errors import SettingError


def test_settings_of_the_run_and_of_the_experiment_are_separated() -> None:
    experiment, run = run_config.read("digits", {"cohorts": 2, "wait-seconds": 5, "set": "seed=7 federation.lr=0.5"})
    assert (experiment.cohorts, experiment.seed, experiment.federation.lr) == (2, 7, 0.5)
    assert run.wait_seconds == 5.0


def test_a_rule_that_needs_validation_samples_is_refused() -> None:
    with pytest.raises(SettingError, match="allowed here: plateau, rounds, budget"):
        run_config.read("digits", {"set": "stopping.rule=joint"})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("federation.client=scaffold federation.momentum=0", "'scaffold' is for simulations: nodes remember nothing"),
        ("federation.client=feddyn", "allowed here: sgd, adam, adamw, fedprox"),
        (
            "federation.participation=0.5 federation.selection=oort",
            "'oort' is for simulations; allowed here: random, all",
        ),
        ("federation.participation=0.5 federation.over_selection=0.3", "federation.over_selection = 0.3 is for sim"),
        ("federation.deadline=60", "federation.deadline = 60"),
        ("federation.batch_stats=local", "federation.batch_stats = 'local'"),
        ("federation.min_results=2 devices.crash_rate=0.1", "federation.min_results = 2"),
        ("federation.buffer_size=3", "federation.buffer_size = 3"),
        ("devices.availability=synthetic", "devices.availability = 'synthetic'"),
        ("devices.crash_rate=0.1", "devices.crash_rate = 0.1"),
        ("assignment.rule=label-balanced", "'label-balanced' is for simulations; allowed here: random, csv"),
        ("model.by_cohort.0=gn-lenet", "model.by_cohort is for simulations"),
    ],
)
def test_settings_for_simulations_are_refused(setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=words) as error:
        run_config.read("digits", {"set": setting})
    assert "\n" not in str(error.value)


def test_settings_for_fleets_are_accepted() -> None:
    settings = "federation.client=adam federation.momentum=0 federation.server=fedyogi federation.selection=all"
    assert run_config.read("digits", {"set": settings})[0].federation.server == "fedyogi"


def test_a_key_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(SettingError, match="wait-seconds = 'soon'"):
        run_config.read("digits", {"wait-seconds": "soon"})
