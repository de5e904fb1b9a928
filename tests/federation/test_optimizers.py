"""Naming optimizers: built-in ones, a user's own, mistakes, and what does not go together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command
from tests.pages import files, find, noted

import cpfl
from cpfl.errors import SettingError
from cpfl.federation.optimizers import client_optimizer
from cpfl.federation.optimizers.base import ClientOptimizer, ServerOptimizer
from cpfl.settings import Experiment, Federation, experiment_file
from cpfl.settings.choices import CLIENT_OPTIMIZERS, SELECTIONS, SERVER_OPTIMIZERS, STOPPING_RULES

PAGE = find("custom-optimizer.md")


def test_every_known_name_has_a_documented_class() -> None:
    for registry in (CLIENT_OPTIMIZERS, SERVER_OPTIMIZERS, SELECTIONS, STOPPING_RULES):
        assert registry.names
        for name in registry.names:
            assert registry.find(name).__doc__


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "near": ({"client": "fedprocks"}, ("client = 'fedprocks'", "did you mean fedprox?", "scaffold", "module:Class")),
    "far": ({"server": "x"}, ("server = 'x'", "Known: mean, fedavgm", "krum")),
    "case": ({"server": "FedAdam"}, ("server = 'FedAdam'", "fedadam")),
    "nesterov alone": ({"client_args": {"nesterov": True}}, ("client_args.nesterov", "momentum must be above 0")),
    "adam and momentum": ({"client": "adam", "momentum": 0.9}, ("adam", "momentum must be 0")),
    "scaffold and momentum": ({"client": "scaffold", "momentum": 0.9}, ("scaffold", "momentum must be 0")),
    "scaffold and krum": ({"client": "scaffold", "server": "krum"}, ("scaffold", "krum")),
    "feddyn and fedadam": ({"client": "feddyn", "server": "fedadam"}, ("feddyn", 'server must be "mean"')),
    "fednova and adam": ({"client": "adam", "server": "fednova"}, ("fednova", 'client must be "sgd"')),
    "median by samples": ({"server": "median", "weights": "samples"}, ("median", "weights", "equal")),
    "a rate for the mean": ({"server_args": {"lr": 0.1}}, ("server_args.lr", "it takes no arguments")),
    "cosine without an end": ({"lr_schedule": "cosine"}, ("cosine", "lr_schedule_args.rounds")),
    "a factor for cosine": (
        {"lr_schedule": "cosine", "lr_schedule_args": {"rounds": 5, "factor": 0.5}},
        ("does not take federation.lr_schedule_args.factor", "known: rounds, floor"),
    ),
    "trim": (
        {"server": "trimmed-mean", "server_args": {"trim": 0.5}},
        ("federation.server_args.trim = 0.5 is not allowed: 0 or more, below 0.5",),
    ),
    "mu": (
        {"client": "fedprox", "client_args": {"mu": -1}},
        ("federation.client_args.mu = -1 is not allowed: 0 or more",),
    ),
    "no number": ({"client": "fedprox", "client_args": {"mu": "x"}}, ("mu = 'x' is not allowed: a number is needed",)),
    "another's argument": ({"client": "adam", "client_args": {"betta1": 0.5}}, ("did you mean beta1?", "epsilon")),
    "nothing": (
        {"client": "adam", "client_args": {"beta1": None}},
        ("client_args", "beta1 is None, which a file cannot hold"),
    ),
    "krum": (
        {"server": "krum", "server_args": {"num_byzantine": 4}},
        ("num_byzantine = 4", "11 participants", "has 10", "0 to 3"),
    ),
    "multi-krum": (
        {"server": "krum", "server_args": {"num_byzantine": 2, "num_selected": 9}},
        ("num_selected = 9", "num_byzantine = 2", "has 10", "1 to 8"),
    ),
}


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_only_finite_numbers(value: float) -> None:
    with pytest.raises(SettingError, match=r"federation\.client_args\.mu = (inf|nan) is not allowed: 0 or more"):
        client_optimizer(Federation(client="fedprox", client_args={"mu": value}))


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str, cpfl_command: Command, tmp_path: Path) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(SettingError) as error:
        cpfl.run(Experiment(federation=settings), out=tmp_path / "run")
    for word in words:
        assert word in str(error.value)
    if case == "nothing":  # TOML has no such value
        return
    flat = [f"federation.{key}={experiment_file._toml(value)}" for key, value in settings.items()]
    base = ["federation.momentum=0"] if "momentum" not in settings else []
    answer = cpfl_command("run", "digits", "--out", "run", *(w for pair in base + flat for w in ("--set", pair)))
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_pages_examples(cpfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = files(PAGE)
    assert set(shown) == {"signs.py", "middle.py", "mine.toml"}
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    (command,) = noted("custom-optimizer.md", "tests/federation/test_optimizers.py")
    settings = ["--set", "precision=float64", "--set", "distillation.epochs=1"]
    ended = []
    for engine in ("reference", "workers", "lanes"):
        words = [*command, *settings, "--engine", engine, "--device", "cpu", "--out", engine]
        cpfl_command(*words).good()
        ended.append(cpfl.load_run(tmp_path / engine))
    for other in ended[1:]:
        for ours, theirs in zip(other.rounds, ended[0].rounds, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=0, abs=1e-9)
    first, last = (next(r for r in ended[0].rounds if r["round"] == number) for number in (1, 12))
    assert last["loss"] < 0.95 * first["loss"]
    assert ended[0].experiment.federation.client_args == {"keep": 0.8}


class NotAnOptimizer:
    """Of no base class."""

    def __init__(self, *_: object) -> None:
        raise AssertionError("must never be called")


class Own(ClientOptimizer):
    """One setting."""

    def __init__(self, federation: Federation, strength: float = 1.0) -> None:
        super().__init__(federation)
        if strength < 0:
            raise ValueError("strength must not be negative")


class OwnAggregation(ServerOptimizer):
    """Needs all."""

    needs_all_models = True


HERE = __name__


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client": f"{HERE}:NotAnOptimizer"}, ("federation.client", "no subclass of cpfl.ClientOptimizer")),
        ({"server": f"{HERE}:NotAnOptimizer"}, ("federation.server", "no subclass of cpfl.ServerOptimizer")),
        ({"server": f"{HERE}:Own"}, ("federation.server", "no subclass of cpfl.ServerOptimizer")),
        ({"client": "os:system"}, ("federation.client = 'os:system'", "no subclass")),
        ({"client": "cpfl:ClientOptimizer"}, ("no subclass",)),
        ({"client": "nowhere_at_all:Part"}, ("cannot be loaded", "nowhere_at_all")),
        ({"client": f"{HERE}:Missing"}, ("cannot be loaded", "Missing")),
        (
            {"client": f"{HERE}:Own", "client_args": {"strenght": 2}},
            ("does not take federation.client_args.strenght; did you mean strength? known: strength",),
        ),
        (
            {"client": f"{HERE}:Own", "client_args": {"strength": "high"}},
            ("federation.client_args.strength = 'high' is not allowed: a number is needed",),
        ),
        (
            {"server": f"{HERE}:OwnAggregation", "server_args": {"steps": 2}},
            ("does not take federation.server_args.steps; it takes no arguments",),
        ),
        (
            {"client": f"{HERE}:Own", "client_args": {"strength": -1}},
            ("federation.client_args", "strength must not be negative"),
        ),
        ({"server": f"{HERE}:OwnAggregation", "weights": "samples"}, ("federation.weights", "equal")),
        ({"client": "feddyn", "server": f"{HERE}:OwnAggregation"}, ("feddyn", "mean")),
    ],
)
def test_own_optimizers_that_are_refused(settings: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        cpfl.run(Experiment(federation=settings), out=tmp_path / "run")
    assert all(word in str(error.value) for word in words), str(error.value)
    assert not (tmp_path / "run").exists()
