"""All settings: documented, resolvable, refused where they have no effect, stored and read back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cpfl.errors import SettingError
from cpfl.registry import Registry
from cpfl.settings import Experiment, Federation, choices, describe, experiment_file

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

SETTINGS = {info.key: info for info in describe.all_settings()}
REGISTRIES = {name: value for name, value in vars(choices).items() if isinstance(value, Registry)}
AUGMENTED = {"data.augment": "crop-flip-cutout"}
JOINT = {"stopping.rule": "joint"}
MEET = {"meetings.rule": "mean", "meetings.interval": "1h"}
MERGE = {"meetings.final": "merge"}
PRIVATE = MERGE | {"data.public": "none"}
# Every setting with a condition: changes of the default experiment under which it has an effect, and has none.
CONDITIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "data.alpha": ({}, {"data.split": "iid"}),
    "data.remainder": ({}, {"data.split": "iid"}),
    "data.classes": ({}, {"model.objective": "regression"}),
    "data.column": ({"data.split": "column"}, {}),
    "data.shards": ({"data.split": "shards"}, {}),
    **{f"data.public_{key}": ({}, PRIVATE) for key in ("splits", "mean", "std", "fit", "limit")},
    **{
        f"distillation.{key}": ({}, MERGE)
        for key in (
            "augment",
            "loss",
            "loss_args",
            "epochs",
            "batch_size",
            "lr",
            "lr_schedule",
            "student_init",
            "student",
        )
    },
    "meetings.final": ({}, {"cohorts": 1}),
    "data.validation_min_samples": ({}, {"data.validation": 0}),
    "data.augment_validation": (AUGMENTED, {}),
    "federation.local_epochs": ({}, {"federation.local_steps": 3}),
    "federation.lr_schedule_args": ({"federation.lr_schedule": "cosine"}, {}),
    "federation.participation": ({}, {"federation.participants": 3}),
    "federation.straggler_policy": ({"federation.deadline": 9}, {}),
    "federation.max_staleness": ({"federation.deadline": 9, "federation.straggler_policy": "stale"}, {}),
    "federation.min_results": ({"devices.crash_rate": 0.1}, {}),
    "federation.concurrency": ({"federation.buffer_size": 3}, {}),
    "stopping.patience": ({}, {"stopping.rule": "budget", "stopping.max_hours": 1}),
    "stopping.rounds": ({"stopping.rule": "rounds"}, {}),
    "stopping.ema_rounds": ({"stopping.keep": "ema"}, {}),
    "stopping.metric": (JOINT, {}),
    "stopping.eval_interval": (JOINT, JOINT | MEET),
    "stopping.min_gain": (JOINT, {}),
    "stopping.gain_per": (JOINT, {}),
    "stopping.eval_window": (JOINT, {}),
    "stopping.client_fraction": (JOINT, JOINT | {"stopping.metric": "public-agreement"}),
    "meetings.rule": ({}, {"cohorts": 1}),
    "meetings.rule_args": (MEET, {}),
    "meetings.interval": (MEET, {}),
    "meetings.redraw": (MEET, MEET | {"assignment.rule": "speed"}),
    "meetings.server_state": (MEET | {"federation.server": "fedavgm"}, MEET),
    "devices.compute_ms": ({"devices.trace": "fixed"}, {}),
    "devices.network_kbps": ({"devices.trace": "fixed"}, {}),
    "devices.online_hours": ({"devices.availability": "synthetic"}, {}),
    "devices.offline_hours": ({"devices.availability": "synthetic"}, {}),
    "distillation.same_views": (AUGMENTED, {}),
    "distillation.views": (AUGMENTED, AUGMENTED | {"distillation.same_views": False}),
    "distillation.flip_average": ({"distillation.augment": "flip"}, {}),
    "distillation.target_entropy": ({}, {"distillation.aggregation": "logits"}),
    "distillation.temperature": ({}, {"distillation.aggregation": "logits", "distillation.loss": "mse"}),
    "distillation.unfinished": ({"distillation.quorum": 0.5}, {}),
    "privacy.delta": ({"privacy.epsilon": 1}, {}),
}
VALUES = {"data.column": "writer", "federation.lr_schedule_args": {"rounds": 9}, "stopping.rounds": 9}  # else defaults
VALUES["meetings.interval"] = "2h"


def value(key: str) -> Any:
    return VALUES.get(key, SETTINGS[key].default)


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_documented(key: str) -> None:
    info = SETTINGS[key]
    assert len(info.doc.split()) >= 2
    assert info.doc.endswith(".")
    assert info.type in ("number", "whole number", "text", "true or false", "name", "table", "list", "choice")
    assert info.allowed or info.type != "choice"
    section, _, leaf = key.rpartition(".")
    own = Experiment()
    assert info.default == getattr(getattr(own, section) if section else own, leaf)


@pytest.mark.parametrize("name", REGISTRIES)
def test_every_choice_is_a_class(name: str) -> None:
    registry = REGISTRIES[name]
    assert registry.names
    assert registry.key in SETTINGS
    assert SETTINGS[registry.key].default in registry.names
    for choice in registry.names:
        assert isinstance(registry.find(choice), type)


def test_the_table_of_conditions_is_complete() -> None:
    assert set(CONDITIONS) == {key for key, info in SETTINGS.items() if info.effect}


@pytest.mark.parametrize("key", CONDITIONS)
def test_a_setting_without_effect_is_refused(key: str) -> None:
    _, without = CONDITIONS[key]
    with pytest.raises(SettingError) as refused:
        experiment_file.with_settings(Experiment(), without | {key: value(key)})
    sentence = str(refused.value)
    assert sentence.startswith(f"{key} has no effect here: it needs ")
    assert sentence.rpartition(" it needs ")[2] in SETTINGS[key].effect.split("; ")
    assert "\n" not in sentence


@pytest.mark.parametrize("key", CONDITIONS)
def test_a_setting_with_an_effect_is_accepted(key: str) -> None:
    fulfilled, _ = CONDITIONS[key]
    section, _, leaf = key.rpartition(".")
    changed = experiment_file.with_settings(Experiment(), fulfilled | {key: value(key)})
    assert getattr(getattr(changed, section), leaf) == value(key)


def test_a_file_is_refused_like_python_and_the_command_line(cpfl_command: Command, tmp_path: Path) -> None:
    expected = "stopping.min_gain has no effect here: it needs stopping.rule = joint"
    (tmp_path / "mine.toml").write_text("[stopping]\nmin_gain = 1\n")
    (tmp_path / "plain.toml").write_text("")
    for words in (("mine.toml",), ("plain.toml", "--set", "stopping.min_gain=1")):
        answer = cpfl_command("run", *words, "--out", "run")
        assert (answer.code, answer.err) == (2, f"cpfl: {expected}\n")
    assert not (tmp_path / "run").exists()


def test_keys_of_a_file_may_lose_their_effect(cpfl_command: Command) -> None:
    """The preset sets patience, which the rule `rounds` does not read: that is not the user's mistake."""
    assert "patience" in experiment_file.load("digits").stopping.model_fields_set
    rule = ("stopping.rule=rounds", "stopping.rounds=3")
    changed = experiment_file.load("digits", rule)
    assert changed.stopping.patience == Experiment().stopping.patience
    words = [word for setting in (*rule, "distillation.epochs=1") for word in ("--set", setting)]
    summary = cpfl_command("run", "digits", *words, "--out", "run", "--json").good().json
    assert {cohort["stop"] for cohort in summary["by_cohort"]} == {"rounds"}
    assert summary["rounds"] == 3 * 4
    with pytest.raises(SettingError, match=r"stopping\.patience has no effect"):
        experiment_file.load("digits", [*rule, "stopping.patience=3"])


@pytest.mark.parametrize("preset", experiment_file.presets())
def test_stored_experiments_are_read_back_equal(preset: str, tmp_path: Path) -> None:
    experiment = experiment_file.load(preset)
    (tmp_path / "experiment.toml").write_text(experiment_file.to_toml(experiment))
    assert experiment_file.read_stored(tmp_path / "experiment.toml") == experiment


def test_settings_are_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, validate = [], Experiment.__init__

    def counted(self: Experiment, /, **tree: Any) -> None:
        calls.append(tree)
        validate(self, **tree)

    monkeypatch.setattr(Experiment, "__init__", counted)
    experiment_file.load("digits")
    experiment_file.load("digits", ["max_rounds=5", "distillation.epochs=2"])
    assert len(calls) == 2


def test_the_section_federation_stays_small() -> None:
    """Numbers of one algorithm are arguments of its class, not settings of everybody."""
    assert len(Federation.model_fields) <= 27
