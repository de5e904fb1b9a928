"""Strategies for the fuzz tests: settings of all kinds of values, and damage to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from cpfl.registry import Registry, _plain_types
from cpfl.settings import choices, describe
from cpfl.settings.experiment import fields

SETTINGS = {info.key: info for info in describe.all_settings()}
REGISTRIES = {one.key: one for one in vars(choices).values() if isinstance(one, Registry)}
# Settings that say how much work there is: a run of a year is no defect, so runs take small values of them.
WORK = {
    "max_rounds": (1, 3), "distillation.epochs": (1, 3), "distillation.views": (1, 3),
    "federation.local_epochs": (1, 2), "federation.local_steps": (0, 4), "clients": (1, 24),
    "data.train_limit": (30, 300), "data.public_limit": (2, 100),
    "data.classes": (10, 60),
}  # fmt: skip
# Choices under which other settings have an effect; a run begins with up to two of them.
SCENES: tuple[dict[str, Any], ...] = (
    {"data.split": "iid"},
    {"data.split": "shards"},
    {"federation.lr_schedule": "cosine", "federation.lr_schedule_args": {"rounds": 3}},
    {"federation.lr_schedule": "step", "federation.lr_schedule_args": {"rounds": 1}},
    {"federation.deadline": 60.0},
    {"federation.deadline": 60.0, "federation.straggler_policy": "stale"},
    {"federation.deadline": 60.0, "federation.straggler_policy": "partial"},
    {"federation.participation": 0.5, "federation.over_selection": 0.5},
    {"federation.participants": 1},
    {"federation.buffer_size": 2},
    {"federation.client": "fedprox"},
    {"federation.client": "scaffold", "federation.momentum": 0.0},
    {"federation.client": "feddyn"},
    {"federation.client": "adamw", "federation.momentum": 0.0},
    {"federation.server": "fedadam"},
    {"federation.server": "trimmed-mean"},
    {"federation.server": "krum"},
    {"federation.selection": "oort", "federation.participation": 0.5},
    {"federation.selection": "power-of-choice", "federation.participation": 0.5},
    {"federation.selection": "refl", "federation.participation": 0.5, "devices.availability": "synthetic"},
    {"devices.availability": "synthetic"},
    {"devices.crash_rate": 0.3},
    {"devices.trace": "fixed"},
    {"stopping.rule": "rounds", "stopping.rounds": 2},
    {"stopping.rule": "budget", "stopping.max_hours": 1},
    {"stopping.rule": "joint", "stopping.eval_interval": 1},
    {"stopping.rule": "joint", "stopping.eval_interval": 1, "stopping.metric": "public-agreement"},
    {"stopping.keep": "ema"},
    {"meetings.rule": "mean", "meetings.interval": "1 rounds"},
    {"meetings.rule": "outer", "meetings.interval": "1 rounds"},
    {"meetings.rule": "distill", "meetings.interval": "1 rounds", "meetings.rule_args.epochs": 1},
    {"meetings.rule": "mean", "meetings.interval": "20s", "meetings.rule_args.weights": "work"},
    {"assignment.rule": "speed"},
    {"assignment.rule": "multi-objective"},
    {"privacy.epsilon": 1.0},
    {"privacy.min_clients": 2},
    {"distillation.recipe": "cpfl"},
    {"distillation.augment": "flip"},
    {"distillation.recipe": "cpfl", "distillation.augment": "cutmix"},
    {"distillation.quorum": 0.5},
    {"distillation.at": "30s"},
    {"model.by_cohort": {"0": "mlp"}},
)  # fmt: skip
NUMBERS = (0.0, -0.0, -1.0, 0.1, 0.5, 0.9, 1.0, 2.0, 1e-308, 5e-324, 1e-30, 1e-9, 0.999999999999, 1e9, 1e30, 1e308)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
INTEGERS = (-1, 0, 1, 2, 3, 7, 40, 1000, 10**6, 2**31, 2**63 - 1, 2**63, 10**30)
TEXTS = {
    "snapshots": ("2 rounds", "1 rounds", "10s", "5h", "0h", "1e9 rounds"),
    "distillation.at": ("10s", "1h", "0s", "soon"),
    "distillation.student": ("mlp", "gn-lenet", "mpl"),
    "devices.trace": ("fixed", "synthetic", "nowhere.csv"),
    "devices.availability": ("always", "synthetic", "nowhere.json"),
    "data.train": ("digits", "letters", "nowhere"),
    "data.public": ("letters", "digits", "nowhere"),
    "model.start": ("fresh", "given", "nowhere.safetensors", ".", "~"),
    "model.name": ("mlp", "gn-lenet", "femnist-cnn", "torch.nn:Flatten", "os:getcwd"),
}
NAMES = ("os:getcwd", "torch.nn:Linear", ":", "x:", "nowhere:Class", "cpfl:Experiment")

floats = st.sampled_from(NUMBERS) | st.sampled_from(NOT_FINITE) | st.floats()
integers = st.integers(0, 50) | st.sampled_from(INTEGERS) | st.integers()
texts = st.text(max_size=20)
odd = st.one_of(  # values of a wrong type
    st.booleans(), integers, floats, texts, st.lists(integers, max_size=3),
    st.dictionaries(texts, integers, max_size=2), st.text("x", min_size=2000, max_size=3000),
)  # fmt: skip


def one_value(key: str, running: bool) -> st.SearchStrategy[Any]:
    """Values of a setting, from ordinary to absurd; for a run, an ordinary amount of work."""
    info = SETTINGS[key]
    if running and key in WORK:
        return st.integers(*WORK[key])
    own: st.SearchStrategy[Any]
    if info.type == "number":
        near = st.sampled_from([float(info.default or 1) * factor for factor in (0.1, 0.5, 2, 10)])
        own = near | floats
    elif info.type == "whole number":
        own = integers
    elif info.type == "choice":
        own = st.sampled_from(info.allowed.split(", "))
    elif info.type == "name":
        own = st.sampled_from([*REGISTRIES[key].names, *NAMES])
    elif info.type == "true or false":
        own = st.booleans()
    elif info.type == "list":
        own = st.lists(floats, max_size=3)
    elif info.type == "table":
        own = st.dictionaries(texts, floats | texts, max_size=2)
    else:
        own = st.sampled_from(TEXTS.get(key, ("digits", "a"))) | texts
    edges = limits(key)
    if running:
        return st.one_of(ordinary(key, own), ordinary(key, own), st.sampled_from(edges) if edges else own, own)
    own = own | st.sampled_from(edges) if edges else own
    return st.one_of(own, own, own, own, odd)  # mostly of its type


def limits(key: str) -> list[float]:
    """The smallest and the largest value that a setting may have."""
    found = [getattr(one, name, None) for one in fields()[key].metadata for name in ("ge", "gt", "le", "lt")]
    return [limit for limit in found if limit is not None]


def ordinary(key: str, own: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values that a person might give, where there is telling."""
    info = SETTINGS[key]
    if info.type == "whole number":
        return st.integers(1, 12)
    if info.type == "number":
        factors = (0.01, 0.1, 0.5, 2, 10, 100)
        return st.sampled_from([float(info.default or 0.5) * factor for factor in factors])
    if info.type == "name":
        return st.sampled_from(REGISTRIES[key].names)
    return st.sampled_from(TEXTS[key][:2]) if key in TEXTS else own


@st.composite
def settings(draw: Callable[..., Any], running: bool = False) -> dict[str, Any]:
    """One to four settings; a class that is chosen by its name often gets arguments of its own."""
    drawn: dict[str, Any] = {}
    for scene in draw(st.lists(st.sampled_from(SCENES), max_size=2)) if running else ():
        drawn |= scene
    for key in draw(st.lists(st.sampled_from(sorted(SETTINGS)), min_size=1, max_size=4, unique=True)):
        drawn[key] = draw(one_value(key, running))
        registry = REGISTRIES.get(key)
        if registry and isinstance(drawn[key], str) and drawn[key] in registry.names and draw(st.booleans()):
            known = _plain_types(registry.find(drawn[key]))
            if known:
                name = draw(st.sampled_from(sorted(known)))
                own = {float: floats, int: integers, bool: st.booleans()}.get(known[name], odd)
                drawn[f"{key}_args.{name}"] = draw(st.sampled_from([0.1, 0.5, 1, 2]) | own if running else own)
    return drawn


def words(drawn: dict[str, Any]) -> list[str]:
    """The settings as words of a command line, values as in TOML."""
    return [word for key, value in drawn.items() for word in ("--set", f"{key}={toml(value)}")]


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return str(value)  # nan and inf, as in TOML
    return json.dumps(value)


def damages() -> st.SearchStrategy[tuple[str, int, int]]:
    """A way to damage a file, a place in it, and a number for it."""
    kinds = ("bit", "digit", "cut", "delete", "repeat", "garbage", "empty", "swap", "drop line", "deep")
    return st.tuples(st.sampled_from(kinds), st.integers(0, 10**6), st.integers(0, 255))


def damaged(content: bytes, kind: str, place: int, number: int) -> bytes | None:
    """The content after the damage; None: there is nothing of that kind to damage."""
    if kind == "empty":
        return b""
    if kind == "garbage":
        return bytes((number + i) % 256 for i in range(place % 500))
    if kind == "deep":
        return b"[" * 100_000
    if not content:
        return None
    at = place % len(content)
    if kind == "bit":
        return content[:at] + bytes([content[at] ^ (1 << number % 8)]) + content[at + 1 :]
    if kind == "digit":  # the first one from there on
        found = next((i for i in range(at, len(content)) if content[i : i + 1].isdigit()), None)
        if found is None:
            return None
        new = (content[found] - 48 + 1 + number % 9) % 10
        return content[:found] + str(new).encode() + content[found + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "repeat":
        return content[:at] + content[at : at + 1 + number] + content[at:]
    if kind == "drop line":
        lines = content.splitlines(keepends=True)
        return b"".join(line for i, line in enumerate(lines) if i != place % len(lines))
    return None
