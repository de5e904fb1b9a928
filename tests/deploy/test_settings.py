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


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("federation.local=scaffold federation.momentum=0", "'scaffold' is for simulations: nodes remember nothing"),
        ("federation.local=feddyn", "allowed here: sgd, adam, adamw, fedprox"),
        ("federation.selection=oort", "'oort' is for simulations; allowed here: random, all"),
        ("federation.participation=0.5 federation.over_selection=0.3", "federation.over_selection = 0.3 is for sim"),
        ("federation.deadline=60", "federation.deadline = 60"),
        ("federation.minimum=2", "federation.minimum = 2"),
        ("federation.buffer=3", "federation.buffer = 3"),
        ("devices.availability=synthetic", "devices.availability = 'synthetic'"),
        ("devices.crash_rate=0.1", "devices.crash_rate = 0.1"),
        ("cohorting.plan=label-balanced", "'label-balanced' is for simulations; allowed here: random, csv"),
        ("cohorting.models.0=gn-lenet", "cohorting.models is for simulations"),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=words) as error:
        settings.read("digits", {"set": setting})
    assert "\n" not in str(error.value)


def test_what_a_fleet_can_do_is_not() -> None:
    told = "federation.local=adam federation.momentum=0 federation.server=fedyogi federation.selection=all"
    assert settings.read("digits", {"set": told})[0].federation.server == "fedyogi"


def test_a_key_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(SettingError, match="wait-seconds = 'soon'"):
        settings.read("digits", {"wait-seconds": "soon"})
