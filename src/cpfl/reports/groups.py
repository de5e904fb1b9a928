"""Group runs that may be compared: the same experiment with different n and seeds."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cpfl.presets import published as paper
from cpfl.reports.reading import RunFacts
from cpfl.reports.tables import by_cohorts
from cpfl.settings import Experiment, effects

# A group varies n and seed; the other two change what is stored, not the results.
VARIED = ("cohorts", "seed", "snapshots", "checkpoint_seconds")
DRAWN = 5  # seeds of every n, from which the page's selector chooses
LONG = 4  # differing settings that fit into a label
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

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Mean and spread for every n."""
        return by_cohorts(self.summaries)

    @property
    def metric(self) -> str:
        """The name of the metric, the same in all runs."""
        return self.runs[0].metric

    @property
    def published(self) -> dict[str, Any]:
        """The paper's figures that the runs carry; empty if they carry none."""
        found = (run.about.get("published") for run in self.runs)
        return next((carried for carried in found if isinstance(carried, dict)), {})

    @property
    def differences(self) -> list[str]:
        """Settings that differ from the paper's, where its figures are shown beside the runs'."""
        return paper.differences(self.runs[0].experiment) if self.published.get("by_n") else []

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every n of a run, finished or not."""
        return tuple(sorted({run.n for run in self.runs}))

    def runs_of(self, n: int) -> list[RunFacts]:
        """The runs to draw for an n, lowest seed first: the finished ones, or all if none is finished."""
        runs = sorted((run for run in self.runs if run.n == n), key=lambda run: run.experiment.seed)
        return [run for run in runs if run.summary] or runs

    @property
    def first_seeds(self) -> list[RunFacts]:
        """The runs whose rounds are drawn: a few of every n, lowest seed first."""
        return [run for n in self.numbers for run in self.runs_of(n)[:DRAWN]]


def group(runs: Iterable[RunFacts]) -> list[Group]:
    """Runs by experiment, each group labelled by the settings that differ."""
    alike: dict[str, list[RunFacts]] = {}
    for run in runs:
        alike.setdefault(_key(run.experiment, 0), []).append(run)
    found: dict[str, list[RunFacts]] = {}
    for members in alike.values():
        cut_off = any(run.summary and run.summary["cut_off"] for run in members)
        most = max(run.experiment.max_rounds for run in members)  # a limit that no run reached separates no runs
        for run in members:
            found.setdefault(_key(run.experiment, run.experiment.max_rounds if cut_off else most), []).append(run)
    settings = [{k: v for k, v in effects.leaves(json.loads(key)).items() if v != {}} for key in found]
    groups: list[Group] = []
    for own, members in zip(settings, found.values(), strict=True):
        label = _label(own, [other for other in settings if other["name"] == own["name"]])
        slug = re.sub(r"[^a-z0-9.]+", "-", label.lower().replace("α", "alpha")).strip("-.") or "experiment"
        taken = {other.id for other in groups}
        name = next(name for i in range(len(settings)) if (name := f"{slug}-{i + 1}" if i else slug) not in taken)
        groups.append(Group(name, label, members))
    return sorted(groups, key=_natural)


def _key(experiment: Experiment, max_rounds: int) -> str:
    fixed = {key: value for key, value in experiment.model_dump(mode="json").items() if key not in VARIED}
    return json.dumps(fixed | {"max_rounds": max_rounds}, sort_keys=True)


def differing(groups: Sequence[Group]) -> list[list[str]]:
    """What sets each of several experiments apart: its own name, else settings that differ from the main experiment's.

    The main one is that with n = 1 and most runs; nothing is said of it.
    """
    names = [one.runs[0].experiment.name for one in groups]
    if len(set(names)) == len(names) > 1:
        return [[name] for name in names]
    main = max(groups, key=lambda one: (1 in one.numbers, len(one.runs)))
    usual, found = effects.flat(main.runs[0].experiment), list[list[str]]()
    for one in groups:
        own = effects.flat(one.runs[0].experiment)
        keys = [key for key in own if key not in (*VARIED, "precision") and own[key] != usual[key]]
        texts = [_setting(key, own[key]) for key in keys[:LONG]] + ["…"] * (len(keys) > LONG)
        found.append(texts if texts not in found else [*texts, f"({len(found) + 1})"])
    return found


def _label(own: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    keys = sorted({key for other in others for key in own.keys() | other.keys() if own.get(key) != other.get(key)})
    texts = [_setting(key, own.get(key)) for key in keys[:LONG]]
    return ", ".join([str(own["name"]), *texts, *(["…"] if len(keys) > LONG else [])])


def _setting(key: str, value: Any) -> str:
    return f"{SIGNS.get(key, key)} = {f'{value:g}' if isinstance(value, float) else value}"


def _natural(group: Group) -> list[tuple[float, str]]:
    """A sort key: numbers in labels, every second part, sort as numbers."""
    parts = re.split(r"(\d+(?:\.\d+)?)", group.label)
    return [(float(part), "") if i % 2 else (math.inf, part) for i, part in enumerate(parts)]
