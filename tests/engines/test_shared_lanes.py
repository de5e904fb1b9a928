"""Runs of a sweep in the same lanes: each is the run that it is alone, and ends as if it were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cpfl
from cpfl.engines.lanes import shared
from cpfl.engines.lanes.engine import LaneEngine
from cpfl.engines.lanes.member import Space
from cpfl.engines.lanes.shared import common_settings
from cpfl.errors import SweepError
from cpfl.settings import experiment_file
from cpfl.sweeps import RunProgress, SweepCallback, one_run, processes

SMALL: dict[str, Any] = {"precision": "float64", "max_rounds": 4, "clients": 12, "distillation.epochs": 1}
CASES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "seeds and n": ({}, {"seed": [90, 91]}),
    "server optimizers": ({}, {"federation.server": ["mean", "fedavgm", "fedadam"]}),
    "rates and local work": ({}, {"federation.lr": [0.05, 0.1], "federation.local_epochs": [1, 3]}),
    "deadlines": (
        {"federation.straggler_policy": "partial", "federation.deadline": 5, "federation.local_epochs": 2},
        {"federation.deadline": [5, 20]},
    ),
    "selections": ({"federation.participation": 0.5}, {"federation.selection": ["random", "oort"]}),
    "splits and fleets": ({}, {"data.alpha": [0.1, 5], "devices.crash_rate": [0, 0.2]}),
    "evaluated together": ({"stopping.rule": "joint", "stopping.eval_interval": 2}, {"seed": [90, 91]}),
    "clients with state": ({"federation.client": "scaffold", "federation.momentum": 0}, {"seed": [90, 91]}),
    "all models at once": ({"federation.server": "median"}, {"seed": [90, 91]}),
    "stale updates": (
        {"federation.over_selection": 1.0, "federation.participation": 0.4, "federation.straggler_policy": "stale"},
        {"seed": [90, 91]},
    ),
    "batches of other sizes": ({"federation.batch_size": 500}, {"seed": [90, 91]}),
}  # fmt: skip


def same(ours: cpfl.Run, theirs: cpfl.Run, rounding: float = 1e-9) -> None:
    """To rounding."""
    assert len(ours.rounds) == len(theirs.rounds)
    for mine, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert mine.keys() == other.keys()
        for key, value in other.items():
            assert mine[key] == (pytest.approx(value, rel=0, abs=rounding) if isinstance(value, float) else value), key
    for name, value in theirs.model.items():
        torch.testing.assert_close(ours.model[name], value, rtol=0, atol=rounding)


def alone(run: cpfl.Run, out: Path, **common: Any) -> cpfl.Run:
    return cpfl.run(run.experiment, out=out, engine="lanes", device="cpu", **common)


class Counted(LaneEngine):
    """Counts how many are made."""

    made = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        type(self).made += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """Every set of lanes that a test makes."""
    monkeypatch.setattr("cpfl.engines.create.LaneEngine", Counted)
    monkeypatch.setattr(Counted, "made", 0)
    return Counted


@pytest.mark.parametrize("case", CASES)
def test_every_run_is_the_one_that_it_is_alone(case: str, made: type[Counted], tmp_path: Path) -> None:
    settings, over = CASES[case]
    varied = {key: values for key, values in over.items() if key != "seed"}
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "settings": SMALL | settings, "over": varied}
    runs = cpfl.sweep("digits", cohorts=[1, 3], seeds=over.get("seed", [90]), out=tmp_path / "s", **common)
    assert made.made == 1
    assert len(runs) >= 4
    for run in (runs[0], runs[-1], runs[1]):
        same(run, alone(run, tmp_path / f"alone-{run.path.name}"))


def test_who_comes_later_has_rates_and_rules_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lanes are made for all runs of a sweep, though not all are known when they are made."""
    monkeypatch.setattr(shared, "FULL", 0)  # two at a time
    over = {"federation.lr": [0.05, 0.1], "federation.selection": ["random", "oort"]}
    settings = SMALL | {"federation.participation": 0.5}
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "settings": settings}
    for run in cpfl.sweep("digits", cohorts=[2], out=tmp_path / "s", over=over, **common):
        same(run, alone(run, tmp_path / f"alone-{run.path.name}"))


def test_batch_norm_of_clients_is_their_own_runs(made: type[Counted], tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    settings = SMALL | {"federation.batch_stats": "local"}
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "model": build}
    runs = cpfl.sweep("digits", cohorts=[2], seeds=[90, 91], settings=settings, out=tmp_path / "s", **common)
    assert made.made == 1
    for run in runs:
        same(run, cpfl.run(run.experiment, out=tmp_path / f"alone-{run.path.name}", **common))


def test_a_run_that_diverges_ends_alone(made: type[Counted], tmp_path: Path) -> None:
    over, settings = {"federation.lr": [0.05, 1e30, 0.1]}, SMALL | {"precision": "float32"}
    with pytest.raises(SweepError) as caught:
        cpfl.sweep(
            "digits", cohorts=[2], over=over, settings=settings, engine="lanes", device="cpu", out=tmp_path / "s"
        )
    assert made.made == 1
    assert [path.name for path in caught.value.failed] == ["n002-seed90-federation.lr-1e+30"]
    assert "lower federation.lr" in str(next(iter(caught.value.failed.values())))
    assert len(caught.value.runs) == 2
    for run in caught.value.runs:
        same(run, alone(run, tmp_path / f"alone-{run.path.name}"), 1e-3)


def test_little_memory_is_used_by_one_after_the_other(
    made: type[Counted], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared, "MEMORY", 0.0)
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "settings": SMALL}
    runs = cpfl.sweep("digits", cohorts=[3, 1], seeds=[90, 91], out=tmp_path / "s", **common)
    assert made.made == 1
    for run in runs:
        same(run, alone(run, tmp_path / f"alone-{run.path.name}"))


def test_processes_give_the_same_bits_each_time(tmp_path: Path) -> None:
    """Which runs share lanes does not depend on which process is faster."""
    settings = SMALL | {"precision": "float32", "federation.lr": 0.3, "max_rounds": 12}
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "settings": settings, "jobs": 2}
    sweeps = [cpfl.sweep("digits", cohorts=[1, 3], seeds=[90, 91], out=tmp_path / out, **common) for out in "ab"]
    assert len(sweeps[0]) == 4
    for one, other in zip(*sweeps, strict=True):
        assert one.rounds == other.rounds
        assert one.summary["model_checksum"] == other.summary["model_checksum"]


def test_every_process_has_runs_of_its_own_in_lanes() -> None:
    group: Any = [(Path(str(k)), None) for k in range(7)]
    split = [[int(path.name) for path, _ in queue] for queue in processes.shares(group, 2, {"engine": "lanes"})]
    assert split == [[0, 3, 4], [1, 2, 5, 6]]
    one, other = processes.shares(group, 2, {"engine": "workers"})
    assert one is other


def test_models_with_other_frozen_numbers_have_lanes_of_their_own(made: type[Counted], tmp_path: Path) -> None:
    """They are drawn by the seed, and lanes hold them once."""

    def build() -> nn.Module:
        first = nn.Linear(64, 8).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(8, 10))

    common: dict[str, Any] = {"engine": "lanes", "device": "cpu", "model": build}
    runs = cpfl.sweep("digits", cohorts=[2], seeds=[90, 91], settings=SMALL, out=tmp_path / "s", **common)
    assert made.made == 2
    for run in runs:
        same(run, cpfl.run(run.experiment, out=tmp_path / f"alone-{run.path.name}", **common))


class Listener(SweepCallback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def test_settings_that_keep_runs_apart_are_named(made: type[Counted], tmp_path: Path) -> None:
    listener, over = Listener(), {"federation.batch_size": [10, 20], "federation.lr": [0.05, 0.1]}
    common: dict[str, Any] = {
        "engine": "lanes",
        "device": "cpu",
        "settings": SMALL | {"max_rounds": 1, "federation.lr": 1},
    }
    cpfl.sweep("digits", cohorts=[1], over=over, out=tmp_path / "s", callback=listener, **common)
    assert made.made == 2
    told = [text for text in listener.messages if "groups" in text]
    assert told == ["the runs train in 2 groups, since lanes are shared by runs with the same federation.batch_size"]
    assert "federation.lr is varied: its values in over count, not the single one" in listener.messages


class Stopper(SweepCallback):
    """Ctrl-C in the midst of a run's training, or of its distillation."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_progress(self, progress: RunProgress) -> None:
        if progress.epoch >= self.epochs and (self.epochs or progress.rounds >= 3):
            raise KeyboardInterrupt


@pytest.mark.parametrize("epochs", [0, 1], ids=["in training", "in distillation"])
def test_an_interrupted_sweep_continues(epochs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(one_run, "INTERVAL_SECONDS", 0.0)
    settings = SMALL | {"checkpoint_seconds": 0, "distillation.epochs": 3}
    common: dict[str, Any] = {"engine": "lanes", "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        cpfl.sweep(
            "digits", cohorts=[1, 3], seeds=[90, 91], settings=settings, out=tmp_path / "s",
            callback=Stopper(epochs), **common,
        )  # fmt: skip
    begun = sorted(path.parent.name for path in (tmp_path / "s").glob("*/run.json"))
    assert begun
    assert len(list((tmp_path / "s").glob("*/summary.json"))) < 4
    for run in cpfl.sweep(tmp_path / "s", **common):  # no folder is locked any more
        same(run, alone(run, tmp_path / f"alone-{run.path.name}"))


def test_what_runs_must_have_in_common() -> None:
    base = experiment_file.load("digits", ["federation.momentum=0"])

    def together(**changes: Any) -> bool:
        other = experiment_file.with_settings(base, {key.replace("__", "."): v for key, v in changes.items()})
        return common_settings(base) == common_settings(other)

    assert together(cohorts=2, seed=7, clients=20, data__alpha=3, stopping__rule="joint", distillation__epochs=3)
    assert together(federation__lr=0.5, federation__server="fedadam", federation__deadline=9)
    assert not together(federation__batch_size=7)
    assert not together(federation__momentum=0.9)
    assert not together(federation__client="fedprox")
    assert not together(federation__server="median")
    assert not together(federation__straggler_policy="stale", federation__deadline=9)
    assert not together(data__train_limit=500)
    assert not together(precision="float64")
    assert not together(model__args={"hidden": 8})


def test_rows_are_taken_and_given_back() -> None:
    space = Space(10)
    first, second, third = space.take(4), space.take(4), space.take(2)
    assert (first, second, third, space.take(1), space.take(0)) == (0, 4, 8, None, 0)
    space.give_back(0, 4)
    space.give_back(8, 2)
    assert space.take(5) is None  # not in one stretch
    space.give_back(4, 4)
    assert space.take(10) == 0
