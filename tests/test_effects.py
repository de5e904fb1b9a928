"""What is given changes the outcome of a run or is refused: all settings, their choices, and arguments of classes."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from safetensors.torch import save_file
from torch import nn

import cpfl
from cpfl.api import new_name
from cpfl.federation.local_training import LR_SCHEDULES
from cpfl.registry import NAMED, Registry
from cpfl.settings import choices, describe, experiment_file

SETTINGS = {info.key: info for info in describe.all_settings()}
REGISTRIES = {one.key: one for one in (*vars(choices).values(), LR_SCHEDULES) if isinstance(one, Registry)}
# Twelve clients in three cohorts, two rounds, five epochs of a student.
BASE = {
    "clients": 12, "cohorts": 3, "max_rounds": 2, "data.train_limit": 300, "data.public_limit": 60,
    "model.args.hidden": 8, "data.validation_min_samples": 5, "distillation.epochs": 2, "distillation.batch_size": 32,
    "checkpoint_seconds": 1000,
}  # fmt: skip
FLIPPED = {"distillation.augment": "flip"}
PROBABILITIES = {"distillation.aggregation": "probabilities", "distillation.loss": "kl"}
DEADLINE = {"federation.deadline": 60}
STALE = {"federation.deadline": 12, "federation.straggler_policy": "stale", "max_rounds": 6}
HALF = {"federation.participation": 0.5, "max_rounds": 6}
FEW = {"federation.participation": 0.25, "max_rounds": 16, "cohorts": 1}
PLAIN = {"federation.momentum": 0}
AWAY = {"devices.availability": "synthetic", "devices.online_hours": 0.02, "devices.offline_hours": 0.02}
OWNERS = {"given": "columns", "data.split": "column", "data.column": "owner", "cohorts": 2}
COLUMNS = {"given": "columns", "clients": 2, "cohorts": 2}
JOINT = {"stopping.rule": "joint", "stopping.eval_interval": 1, "max_rounds": 8}
QUORUM = {"snapshots": "1 rounds", "stopping.rule": "budget", "stopping.max_hours": 0.01, "distillation.quorum": 0.5}
QUORUM |= {"max_rounds": 4}
MEET = {"meetings.rule": "mean", "meetings.interval": "1 rounds", "max_rounds": 3}
# What a run begins with, where a setting, or one of its values, has no effect on the base alone.
WHERE: dict[str, dict[str, Any]] = {
    "data.column": COLUMNS | {"data.split": "column", "data.column": "odd"},
    "data.inputs pixels": {"data.inputs": "numbers"},
    "data.shards": {"data.split": "shards"},
    "data.std": {"data.mean": [0.5], "data.std": [0.5]},
    "data.mean": {"data.mean": [0.5], "data.std": [0.5]},
    "data.public_mean": {"data.public_mean": [0.5], "data.public_std": [0.5]},
    "data.public_std": {"data.public_mean": [0.5], "data.public_std": [0.5]},
    "data.public_fit crop": {"given": "large", "data.public_fit": "resize"},
    "data.public_fit resize": {"given": "large", "data.public_fit": "crop"},
    "data.split column": COLUMNS,
    "data.augment": {"given": "images"},
    "data.augment_validation": {"given": "images", "data.augment": "crop-flip-cutout"},
    "model.objective": {"given": "zeros and ones", "data.split": "iid"},
    "assignment.rule column": OWNERS,
    "federation.lr_schedule_args": {"federation.lr_schedule": "step", "federation.lr_schedule_args": {"rounds": 1}},
    "federation.client adam": PLAIN,
    "federation.client adamw": PLAIN,
    "federation.client scaffold": PLAIN,
    "federation.batch_stats": {"model.name": "tests.engines.test_batch_norm:Normed"},
    "federation.participation": {"max_rounds": 2},
    "federation.selection": HALF,
    "federation.selection all": {},
    "federation.selection refl": HALF | AWAY,
    "federation.over_selection": HALF,
    "federation.straggler_policy": {"federation.deadline": 12, "max_rounds": 6},
    "federation.max_staleness": STALE,
    "federation.min_results": {"devices.crash_rate": 0.5, "max_rounds": 6},
    "federation.concurrency": {"federation.buffer_size": 2},
    "stopping.rule joint": {"max_rounds": 8},
    "stopping.window": {"max_rounds": 12},
    "stopping.patience": {"max_rounds": 8, "federation.lr": 2.0},
    "stopping.rounds": {"stopping.rule": "rounds", "stopping.rounds": 2},
    "stopping.keep": {"max_rounds": 4, "federation.lr": 2.0},
    "stopping.ema_rounds": {"stopping.keep": "ema", "stopping.ema_rounds": 3, "max_rounds": 4},
    "stopping.metric": JOINT,
    "stopping.eval_interval": JOINT,
    "stopping.min_gain": JOINT,
    "stopping.gain_per": JOINT,
    "stopping.eval_window": JOINT,
    "stopping.client_fraction": JOINT,
    "meetings.rule_args": MEET,
    "meetings.interval": MEET,
    "meetings.redraw": MEET,
    "meetings.server_state": MEET | {"federation.server": "fedavgm", "max_rounds": 3},
    "meetings.rule": {"max_rounds": 3},
    "devices.compute_ms": {"devices.trace": "fixed"},
    "devices.network_kbps": {"devices.trace": "fixed"},
    "devices.online_hours": AWAY,
    "devices.offline_hours": AWAY,
    "distillation.views": FLIPPED | {"distillation.same_views": True, "distillation.views": 2},
    "distillation.same_views": FLIPPED,
    "distillation.flip_average": FLIPPED,
    "distillation.target_entropy": PROBABILITIES,
    "distillation.temperature": PROBABILITIES,
    "distillation.quorum": {key: value for key, value in QUORUM.items() if key != "distillation.quorum"},
    "distillation.at": {"snapshots": "1 rounds", "max_rounds": 4},
    "distillation.unfinished": QUORUM,
    "privacy.delta": {"privacy.epsilon": 1},
}
# What is given together with a choice, because it needs it.
WITH: dict[str, dict[str, Any]] = {
    "data.split column": {"data.column": "odd"},
    "assignment.rule column": {"assignment.rule_args": {"column": "odd"}},
    "assignment.rule csv": {"assignment.rule_args": {"file": "cohorts.csv"}},
    "federation.lr_schedule step": {"federation.lr_schedule_args": {"rounds": 1}},
    "federation.lr_schedule cosine": {"federation.lr_schedule_args": {"rounds": 1}},
    "stopping.rule rounds": {"stopping.rounds": 1},
    "stopping.rule budget": {"stopping.max_hours": 0.001},
    "stopping.rule joint": {"stopping.eval_interval": 1},
    **{
        f"meetings.rule {name}": {"meetings.interval": "1 rounds"}
        for name in ("mean", "outer", "distill", "asynchronous")
    },
}
# A value other than the present one, where the next number or half of it would not do.
VALUES: dict[str, Any] = {
    "snapshots": "1 rounds",
    "seed": 91,
    "data.train": "digits",
    "data.public": "letters",
    "data.public_splits": ["elsewhere"],
    "data.column": "half",
    "data.label": "x",
    "data.validation_min_samples": 20,
    "data.mean": [0.25],
    "data.std": [0.25],
    "data.public_mean": [0.25],
    "data.public_std": [0.25],
    "data.classes": 11,
    "model.name": "femnist-cnn",
    "model.args": {"hidden": 9},
    "model.start": "weights.safetensors",
    "model.by_cohort": {"0": "femnist-cnn"},
    "model.objective_args": {"x": 1},
    "assignment.rule_args": {"skew": 1},
    "federation.client_args": {"weight_decay": 0.1},
    "federation.lr_schedule_args": {"rounds": 1, "factor": 0.25},
    "federation.server_args": {"trim": 0.1},
    "federation.selection_args": {"candidates": 1},
    "federation.participation": 0.5,
    "federation.warmup_rounds": 3,
    "federation.max_staleness": 1,
    "federation.deadline": 12,
    "federation.min_results": 3,
    "stopping.patience": 1,
    "stopping.window": 1,
    "stopping.rounds": 1,
    "stopping.max_hours": 0.001,
    "stopping.max_cpu_hours": 0.001,
    "stopping.max_traffic_gb": 0.0001,
    "stopping.rule_args": {"x": 1},
    "stopping.min_gain": 0.0,
    "stopping.eval_window": 4,
    "meetings.rule_args": {"weights": "work"},
    "meetings.interval": "2 rounds",
    "devices.trace": "fixed",
    "devices.availability": "synthetic",
    "distillation.aggregation_args": {"x": 1},
    "distillation.weights_args": {"x": 1},
    "distillation.loss_args": {"x": 1},
    "distillation.student": "femnist-cnn",
    "distillation.at": "20s",
    "distillation.views": 1,
    "distillation.batch_size": 7,
    "privacy.min_clients": 5,
}
# Values that are no mistake although the outcome is that of the base, and why.
SAME = {
    "precision tf32": "a GPU's arithmetic: on a CPU it is float32",
    "precision float32": "what auto means on a CPU",
    "federation.selection all": "another word for participation = 1, which it needs",
    "distillation.augment auto": "digits are not augmented, so auto is none",
    "distillation.augment none": "digits are not augmented, so training is none",
    "privacy.label_counts masked": "the same sums, without anybody seeing a single client's",
}
# Settings whose effect is on files beside the outcome; tests of their own say which.
ELSEWHERE = {
    "name": "the name of a new run folder",
    "checkpoint_seconds": "how often checkpoints are written",
}
# Arguments of a class of one's own, and what a table has; what comes with the package and is in the base takes none.
OWN = (
    "stopping.rule_args", "distillation.aggregation_args", "distillation.weights_args", "distillation.loss_args",
    "assignment.rule_args", "federation.server_args", "federation.selection_args", "data.public_splits",
    "model.objective_args",
    "data.label",
)  # fmt: skip
# How many arguments the package passes to a class before its own.
PASSED = {
    "federation.client": 1, "federation.server": 1, "federation.selection": 1, "stopping.rule": 1,
    "distillation.aggregation": 1, "distillation.loss": 2, "meetings.rule": 2,
}  # fmt: skip
# What a run begins with for the arguments of a class; `args` are its other arguments.
CLASSES: dict[str, dict[str, Any]] = {
    "model.objective per-position": {"given": "positions", "data.split": "iid"},
    "model.objective multi-label": {"given": "several", "data.split": "iid"},
    "federation.client adam": PLAIN,
    "federation.client adamw": PLAIN,
    "federation.client scaffold": PLAIN,
    "federation.selection": HALF | {"max_rounds": 8},
    "federation.selection refl": HALF | AWAY | {"cohorts": 1, "max_rounds": 12},
    "oort.explore_least": {"args": {"explore": 0.9, "explore_decay": 0.1}},
    "oort.pacer_seconds": {"args": {"explore": 0.5}} | FEW,
    "oort.pacer_rounds": {"args": {"explore": 0.5, "pacer_seconds": 10.0}} | FEW,
    "krum.num_byzantine": {"cohorts": 1},
    "meetings.rule": {"meetings.interval": "1 rounds", "max_rounds": 3},
    "asynchronous.damping": {"assignment.rule": "speed", "max_rounds": 6},
    "assignment.rule multi-objective": {"clients": 24},
    "assignment.rule column": OWNERS | {"args": {"column": "odd"}},
    "assignment.rule csv": {"args": {"file": "cohorts.csv"}},
    "step.factor": {"args": {"rounds": 1}},
    "step.floor": {"args": {"rounds": 1}},
    "step.rounds": {"args": {"rounds": 1}},
    "cosine.floor": {"args": {"rounds": 1}},
    "cosine.rounds": {"args": {"rounds": 1}},
}
# Another value of an argument than the next number or half of it.
ARGUMENTS: dict[str, Any] = {
    "column.column": "half", "csv.file": "other.csv", "step.rounds": 2, "cosine.rounds": 2, "step.floor": 0.9,
    "oort.explore_least": 0.9, "oort.pacer_seconds": 1000.0, "oort.pacer_rounds": 1, "refl.alpha": 1.0,
    "refl.accuracy": 0.0, "trimmed-mean.trim": 0.0, "multi-objective.skew_weight": 0.0,
    "multi-objective.speed_weight": 0.0, "per-position.ignore": 0, "multi-label.metric": "f1",
    "mean.weights": "work", "outer.weights": "work", "asynchronous.weights": "samples",
}  # fmt: skip
# It is an SGD without momentum; a linear layer takes no integers; there is one label for each sample.
REFUSED = ("scaffold.nesterov", "data.inputs integers", "model.objective per-position")
RNG = np.random.default_rng(1)
IMAGES, LABELS = RNG.integers(0, 256, (300, 1, 24, 24), np.uint8), np.arange(300) % 10
OWNER = np.arange(300) % 12
ROWS, IDS = RNG.normal(size=(300, 5)).astype(np.float32), {"owner": OWNER, "odd": OWNER % 2, "half": OWNER // 6}
# Arrays of one's own, where no built-in set has what a setting needs.
GIVEN: dict[str, dict[str, Any]] = {
    "": {},
    "large": {"public": IMAGES[:60]},
    "images": {"train": (IMAGES, LABELS), "public": IMAGES[:60]},
    "columns": {"train": (ROWS, LABELS, IDS), "public": ROWS[:60]},
    "zeros and ones": {"train": (ROWS, LABELS % 2), "public": ROWS[:60]},
    "several": {"train": (ROWS, (ROWS[:, :3] > 0).astype(int)), "public": ROWS[:60]},
    "positions": {
        "train": (LABELS[:, None] + np.arange(4), (LABELS[:, None] + np.arange(4)) % 3),
        "public": LABELS[:60, None] + np.arange(4),
        "model": lambda: nn.Embedding(13, 3),
    },
}


class Runs:
    """Outcomes of runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[str, dict[str, bytes]]()
        self._number = itertools.count()
        for name, width in (("cohorts.csv", 1), ("other.csv", 4)):
            rows = "".join(f"{client},{client // width % 3}\n" for client in range(12))
            (folder / name).write_text(f"client,cohort\n{rows}")
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
        save_file(net.state_dict(), folder / "weights.safetensors")

    def outcome(self, changes: Mapping[str, Any]) -> dict[str, bytes]:
        """What a run leaves behind that is not measured."""
        settings = {key: value for key, value in BASE.items() if key not in changes} | dict(changes)
        if changes.get("model.name", "mlp") != "mlp" or "model.args" in changes:
            settings.pop("model.args.hidden", None)
        if changes.get("meetings.final") == "merge":  # these would have no effect
            settings = {key: value for key, value in settings.items() if not key.startswith("distillation.")}
        if "file" in settings.get("assignment.rule_args", {}):
            settings["assignment.rule_args"] = {"file": str(self._folder / settings["assignment.rule_args"]["file"])}
        if "model.start" in settings:
            settings["model.start"] = str(self._folder / settings["model.start"])
        name = json.dumps(settings, sort_keys=True)
        if name not in self._known:
            path, arrays = self._folder / str(next(self._number)), GIVEN[settings.pop("given", "")]
            cpfl.run("digits", engine="reference", device="cpu", out=path, settings=settings, **arrays)
            self._known[name] = small_runs.contents(path)
        return self._known[name]

    def effect(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        """What the second settings do that the first do not: change something, nothing, or they are refused."""
        expected = self.outcome(before)
        try:
            return "nothing" if self.outcome(after) == expected else "something"
        except cpfl.CpflError:
            return "refused"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("effects"))


def others(key: str) -> list[Any]:
    """Values of a setting other than the one of the base: one, or all other choices."""
    base = experiment_file.load("digits", settings=BASE)
    section, _, leaf = key.rpartition(".")
    now, info = getattr(getattr(base, section) if section else base, leaf), SETTINGS[key]
    if key in VALUES:
        return [VALUES[key]]
    if key in REGISTRIES or info.type == "choice":
        names = REGISTRIES[key].names if key in REGISTRIES else info.allowed.split(", ")
        return [name for name in names if name != now]
    if info.type == "true or false":
        return [not now]
    return [other(now)]


def other(now: float) -> float:
    """Another number."""
    return now + 1 if isinstance(now, int) else now / 2 or 0.25


CASES = [(key, value) for key in SETTINGS if key not in ELSEWHERE for value in others(key)]


@pytest.mark.parametrize(("key", "value"), CASES, ids=lambda part: str(part)[:40])
def test_a_setting(runs: Runs, key: str, value: Any) -> None:
    named = f"{key} {value}"
    where = WHERE.get(named, WHERE.get(key, {}))
    effect = runs.effect(where, where | WITH.get(named, {}) | {key: value})
    if named in SAME:
        assert effect == "nothing"
    elif key in OWN or named in REFUSED:
        assert effect == "refused"
    else:
        assert effect == "something"


def arguments() -> list[tuple[str, str, str, Any]]:
    """All arguments of all classes that come with the package: the setting, the class, the argument, its default."""
    found = []
    for key, registry in REGISTRIES.items():
        for name in registry.names:
            parameters = list(inspect.signature(registry.find(name)).parameters.values())[PASSED.get(key, 0) :]
            found += [(key, name, one.name, one.default) for one in parameters if one.kind in NAMED]
    return found


@pytest.mark.parametrize(("key", "name", "argument", "default"), arguments(), ids=lambda part: str(part)[:20])
def test_an_argument(runs: Runs, key: str, name: str, argument: str, default: Any) -> None:
    named = f"{name}.{argument}"
    where = {key: name} | CLASSES.get(key, {}) | CLASSES.get(f"{key} {name}", {}) | CLASSES.get(named, {})
    needed = where.pop("args", {})
    value = ARGUMENTS[named] if named in ARGUMENTS else (not default if isinstance(default, bool) else other(default))
    with_args = where | {f"{key}_args": needed | {argument: value}}
    expected = "refused" if named in REFUSED else "something"
    assert runs.effect(where | {f"{key}_args": needed}, with_args) == expected


def test_every_setting_is_tried() -> None:
    assert {key for key, _ in CASES} | set(ELSEWHERE) == set(SETTINGS)
    assert {key.partition(" ")[0] for key in (*WHERE, *WITH, *VALUES, *SAME)} <= set(SETTINGS)


def test_checkpoints_are_written_as_often_as_asked(tmp_path: Path) -> None:
    """checkpoint_seconds = 0: after every round."""
    counts = []
    for seconds in (0, 1000):
        written = Checkpoints(tmp_path / str(seconds))
        settings = BASE | {"checkpoint_seconds": seconds}
        cpfl.run("digits", engine="reference", device="cpu", out=written.path, settings=settings, callback=written)
        counts.append(len(written.seen))
    assert counts[0] > counts[1]


class Checkpoints(cpfl.Callback):
    """What checkpoints there are after each round."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, set[tuple[str, int]]()

    def on_round(self, session: object, closed: object) -> None:
        self.seen |= {(file.name, file.stat().st_mtime_ns) for file in self.path.glob("checkpoints/*")}


def test_the_name_is_in_the_name_of_a_new_folder() -> None:
    assert "-mine-" in new_name(cpfl.Experiment(name="mine"))
