"""Naming parts: ours, a user's own, mistakes, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command
from tests.pages import ROOT, files, noted

import cpfl
from cpfl.errors import SettingError
from cpfl.experiment import Experiment, Federation
from cpfl.federation import parts
from cpfl.federation.local_part import LocalPart
from cpfl.federation.server_part import ServerPart
from cpfl.part_settings import LOCALS, SERVERS

PAGE = ROOT / "docs" / "own-algorithm.md"


def test_every_known_name_has_a_part() -> None:
    assert tuple(parts.LOCAL_PARTS) == LOCALS
    assert tuple(parts.SERVER_PARTS) == SERVERS
    for part in (*parts.LOCAL_PARTS.values(), *parts.SERVER_PARTS.values()):
        assert part.__doc__


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "near": ({"local": "fedprocks"}, ("local = 'fedprocks'", "did you mean fedprox?", "scaffold", "module:Class")),
    "far": ({"server": "x"}, ("server = 'x'", "Known: mean, fedavgm", "krum")),
    "case": ({"server": "FedAdam"}, ("server = 'FedAdam'", "fedadam")),
    "nesterov alone": ({"nesterov": True}, ("nesterov", "momentum must be above 0")),
    "adam and momentum": ({"local": "adam", "momentum": 0.9}, ("adam", "momentum must be 0")),
    "scaffold and momentum": ({"local": "scaffold", "momentum": 0.9}, ("scaffold", "momentum must be 0")),
    "scaffold and krum": ({"local": "scaffold", "server": "krum"}, ("scaffold", "krum")),
    "feddyn and fedadam": ({"local": "feddyn", "server": "fedadam"}, ("feddyn", 'server must be "mean"')),
    "fednova and adam": ({"local": "adam", "server": "fednova"}, ("fednova", 'local must be "sgd"')),
    "median by samples": ({"server": "median", "weights": "samples"}, ("median", "weights", "equal")),
    "a rate for the mean": ({"server_lr": 0.1}, ("server_lr", "fedavgm")),
    "cosine without an end": ({"schedule": "cosine"}, ("cosine", "schedule_rounds")),
    "trim": ({"trim": 0.5}, ("federation.trim = 0.5", "0.5")),
    "args of ours": ({"local": "adam", "local_args": {"beta1": 0.5}}, ("local_args", "adam")),
    "krum": ({"server": "krum", "byzantine": 4}, ("byzantine = 4", "11 participants", "at most 10", "0 to 3")),
    "multi-krum": (
        {"server": "krum", "byzantine": 2, "chosen": 9},
        ("chosen = 9", "byzantine = 2", "at most 10", "1 to 8"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence(case: str, cpfl_command: Command, tmp_path: Path) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(SettingError) as error:
        Experiment(federation=settings)
    for word in words:
        assert word in str(error.value)
    flat = [f"federation.{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()]
    if "local_args" in settings:
        flat = ["federation.local=adam", "federation.local_args.beta1=0.5"]
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
    (command,) = noted("own-algorithm.md", "tests/federation/test_parts.py")
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
    assert ended[0].experiment.federation.local_args == {"keep": 0.8}


class NotAPart:
    """Of no base class."""

    def __init__(self, *_: object) -> None:
        raise AssertionError("must never be called")


class Own(LocalPart):
    """One setting."""

    def __init__(self, federation: Federation, strength: float = 1.0) -> None:
        super().__init__(federation)
        if strength < 0:
            raise ValueError("strength must not be negative")


class OwnJoin(ServerPart):
    """Needs all."""

    needs_all = True


HERE = __name__


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local": f"{HERE}:NotAPart"}, ("federation.local", "no subclass of cpfl.LocalPart")),
        ({"server": f"{HERE}:NotAPart"}, ("federation.server", "no subclass of cpfl.ServerPart")),
        ({"server": f"{HERE}:Own"}, ("federation.server", "no subclass of cpfl.ServerPart")),
        ({"local": "os:system"}, ("federation.local = 'os:system'", "no subclass")),
        ({"local": "cpfl:LocalPart"}, ("no subclass",)),
        ({"local": "nowhere_at_all:Part"}, ("cannot be loaded", "nowhere_at_all")),
        ({"local": f"{HERE}:Missing"}, ("cannot be loaded", "Missing")),
        (
            {"local": f"{HERE}:Own", "local_args": {"strenght": 2}},
            ("does not take federation.local_args.strenght; did you mean strength? known: strength",),
        ),
        (
            {"local": f"{HERE}:Own", "local_args": {"strength": "high"}},
            ("federation.local_args.strength = 'high' is not allowed: a number is needed",),
        ),
        (
            {"server": f"{HERE}:OwnJoin", "server_args": {"steps": 2}},
            ("does not take federation.server_args.steps; it takes no arguments",),
        ),
        (
            {"local": f"{HERE}:Own", "local_args": {"strength": -1}},
            ("federation.local_args", "strength must not be negative"),
        ),
        ({"server": f"{HERE}:OwnJoin", "weights": "samples"}, ("federation.weights", "equal")),
        ({"local": "feddyn", "server": f"{HERE}:OwnJoin"}, ("feddyn", "mean")),
    ],
)
def test_own_parts_that_cannot_be(settings: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        cpfl.run(Experiment(federation=settings), out=tmp_path / "run")
    assert all(word in str(error.value) for word in words), str(error.value)
    assert not (tmp_path / "run").exists()
