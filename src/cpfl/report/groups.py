"""Runs that may be compared: the same experiment with other n and seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cpfl.experiment import Experiment
from cpfl.presets import published as paper
from cpfl.report.reading import RunFacts
from cpfl.report.tables import by_cohorts

# n and seed are what a group varies; the others change what is kept, not what comes out.
VARIED = ("cohorts", "seed", "snapshots", "checkpoint_seconds")
LONG = 4  # differing settings that a label can hold
SIGNS = {"data.alpha": "α", "clients": "M"}


@dataclass(frozen=True)
class Group:
    """One experiment: its runs over n and seeds."""

    id: str
    label: str
    runs: list[RunFacts]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The outcomes of the finished runs."""
        return [run.summary for run in self.runs if run.summary]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Mean and spread for every n."""
        return by_cohorts(self.summaries)

    @property
    def published(self) -> dict[str, Any]:
        """The paper's figures that the runs carry; empty if they carry none."""
        found = (run.about.get("published") for run in self.runs)
        return next((carried for carried in found if isinstance(carried, dict)), {})

    @property
    def differences(self) -> list[str]:
        """What is set otherwise than in the paper, where its figures stand beside the runs'."""
        return paper.differences(self.runs[0].experiment) if self.published.get("by_n") else []

    @property
    def numbers(self) -> list[int]:
        """Every n that was begun."""
        return sorted({run.n for run in self.runs})

    def of(self, n: int) -> list[RunFacts]:
        """The runs to draw for an n, lowest seed first: the finished ones, or what there is."""
        runs = sorted((run for run in self.runs if run.n == n), key=lambda run: run.experiment.seed)
        return [run for run in runs if run.summary] or runs


def group(runs: Iterable[RunFacts]) -> list[Group]:
    """Runs by experiment, each group labelled by what sets it apart."""
    alike: dict[str, list[RunFacts]] = {}
    for run in runs:
        alike.setdefault(_key(run.experiment, 0), []).append(run)
    found: dict[str, list[RunFacts]] = {}
    for members in alike.values():
        cut = any(run.summary and run.summary["cut_off"] for run in members)
        most = max(run.experiment.max_rounds for run in members)  # a net that nobody fell into sets no run apart
        for run in members:
            found.setdefault(_key(run.experiment, run.experiment.max_rounds if cut else most), []).append(run)
    settings = [_flat(json.loads(key)) for key in found]
    groups: list[Group] = []
    for own, members in zip(settings, found.values(), strict=True):
        label = _label(own, [other for other in settings if other["name"] == own["name"]])
        slug = re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("α", "alpha")).strip("-.") or "experiment"
        taken = {other.id for other in groups}
        name = next(name for i in range(len(settings)) if (name := f"{slug}-{i + 1}" if i else slug) not in taken)
        groups.append(Group(name, label, members))
    return sorted(groups, key=lambda one: [_natural(part) for part in re.split(r"(\d+(?:\.\d+)?)", one.label)])


def _key(experiment: Experiment, max_rounds: int) -> str:
    fixed = {key: value for key, value in experiment.model_dump(mode="json").items() if key not in VARIED}
    return json.dumps(fixed | {"max_rounds": max_rounds}, sort_keys=True)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _label(own: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    keys = sorted({key for other in others for key in own.keys() | other.keys() if own.get(key) != other.get(key)})
    told = [f"{SIGNS.get(key, key)} = {_text(own.get(key))}" for key in keys[:LONG]]
    return ", ".join([str(own["name"]), *told, *(["…"] if len(keys) > LONG else [])])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _natural(part: str) -> tuple[float, str]:
    """Numbers in labels sort as numbers."""
    try:
        return (float(part), "")
    except ValueError:
        return (float("inf"), part)
