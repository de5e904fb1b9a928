"""What a tune found, from its tune.json: the front of every cost, what settings matter, the trials, the tests."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cpfl.errors import CpflError
from cpfl.reports import style
from cpfl.reports.advice import Advice, advise
from cpfl.reports.candidates import Comparison
from cpfl.reports.cohort_figures import short
from cpfl.reports.reading import shown
from cpfl.reports.sentences import Measure, fixed, number
from cpfl.reports.style import GREY, Rows, Spec, field, mark
from cpfl.reports.verdict import Candidate, Limits, Score
from cpfl.runs import files
from cpfl.runs.outcome import LARGEST

FILE = "tune.json"
COSTS = {"hours": "virtual hours", "cpu_hours": "CPU hours", "traffic_gb": "traffic, GB"}
SHOWN = 15  # settings in the figure of importance
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Shape(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class _Point(_Shape):
    hours: Finite
    cpu_hours: Finite
    traffic_gb: Finite
    accuracy: Finite


class _Trial(_Shape):
    number: int
    reference: str
    path: str
    state: str
    settings: dict[str, Any]
    text: str
    cohorts: int
    best: _Point | None
    error: str


class _Test(_Shape):
    who: str
    trial: int
    seeds: list[int]
    accuracy: list[Finite]
    hours: Finite | None
    cpu_hours: Finite | None
    traffic_gb: Finite | None
    error: str


class _Importance(_Shape):
    key: str
    share: Finite


class _Recommendation(_Shape):
    text: str
    file: str


class _Tune(_Shape):
    """The keys of tune.json that a report shows; there are more."""

    state: str
    name: str
    metric: str
    trials_planned: int
    trials: list[_Trial]
    front: dict[str, list[_Point]]
    importances: list[_Importance]
    recommendation: _Recommendation | None
    paragraph: str
    tests: list[_Test]


class Tuned:
    """One folder of a tune."""

    def __init__(self, folder: Path) -> None:
        self.folder = shown(folder)
        tree = files.read_json(folder / FILE)
        files.check_shape(folder / FILE, _Tune, tree)
        self.tune = _Tune.model_validate(tree)

    def advice(self, limits: Limits) -> list[Advice]:
        """What to take of the tested, over fresh seeds; and of all trials, on validation samples."""
        tests, trials = self._tests(), self._trials()
        return [advise(one, limits) for one in (tests, trials) if len(one.candidates) > 1]

    def figures(self) -> dict[str, tuple[Spec, str]]:
        """Specifications by name, each with the finding that is its title."""
        numbers = sorted({trial.cohorts for trial in self.tune.trials})
        found = {
            f"front-{cost.replace('_', '-')}": (self._front(cost, numbers), self._best(cost))
            for cost in COSTS
            if self.tune.front.get(cost)
        }
        return found | ({"importance": (self._importance(), self._most())} if self.tune.importances else {})

    def table(self) -> list[dict[str, Any]]:
        """A row for every trial."""
        return [
            {
                "name": trial.reference or f"trial {trial.number}",
                "state": trial.state,
                "text": trial.text,
                "error": trial.error,
                "cells": [f"{trial.best.accuracy:.2f}", *(number(getattr(trial.best, cost)) for cost in COSTS)]
                if trial.best
                else ["–"] * 4,
            }
            for trial in self.tune.trials
        ]

    def _tests(self) -> Comparison:
        tune, own = self.tune, Comparison(f"{self.tune.name}, fresh seeds", [], Measure(self.tune.metric))
        cohorts = {trial.number: trial for trial in tune.trials}
        for test in tune.tests:
            costs = (test.hours, test.cpu_hours, test.traffic_gb)
            trial = cohorts.get(test.trial)
            if test.error or not test.accuracy or len(test.accuracy) != len(test.seeds) or trial is None:
                continue
            hours, cpu_hours, gb = (cost or 0.0 for cost in costs)
            each = zip(test.seeds, test.accuracy, strict=True)
            scores = {seed: Score(accuracy, hours, cpu_hours, gb, accuracy) for seed, accuracy in each}
            file = tune.recommendation.file if tune.recommendation and test.who == "recommended" else ""
            self._add(own, f"{test.who}, n = {trial.cohorts}", trial, scores, file)
        return own

    def _trials(self) -> Comparison:
        own = Comparison(f"{self.tune.name}, trials", [], Measure(f"validation {self.tune.metric}"))
        for trial in self.tune.trials:
            if trial.best and trial.state == "complete":
                best = trial.best
                score = Score(best.accuracy, best.hours, best.cpu_hours, best.traffic_gb, best.accuracy)
                self._add(own, f"{trial.reference or f'trial {trial.number}'}, n = {trial.cohorts}", trial, {0: score})
        return own

    def _add(self, own: Comparison, name: str, trial: _Trial, scores: Mapping[int, Score], file: str = "") -> None:
        own.candidates.append(Candidate(name, trial.cohorts, dict(scores), distilled=False))
        own.commands.append(shlex.join(["cpfl", "run", f"{self.folder}/{file or f'{trial.path}/experiment.toml'}"]))
        own.settings.append({key: str(value) for key, value in trial.settings.items()})

    def _front(self, cost: str, numbers: Sequence[int]) -> Spec:
        points: Rows = [
            {
                "trial": trial.reference or f"trial {trial.number}",
                "n": trial.cohorts,
                "cost": short(getattr(trial.best, cost)),
                "accuracy": short(trial.best.accuracy),
                "settings": trial.text,
            }
            for trial in self.tune.trials
            if trial.best
        ]
        front = [{"cost": getattr(point, cost), "accuracy": point.accuracy} for point in self.tune.front[cost]]
        axes = {
            "x": field("cost:Q", title=COSTS[cost], axis={"format": style.PLAIN, "tickCount": 8}),
            "y": field("accuracy:Q", title=f"validation {self.tune.metric}, %", scale={"zero": False, "padding": 12}),
        }
        tips = style.tips(trial="", n="", cost=[COSTS[cost], ".3~g"], accuracy=["%", ".2f"], settings="")
        layers = [
            mark("line", axes, data="front", color=GREY, strokeDash=[6, 4], strokeWidth=2, interpolate="step-after"),
            mark("point", axes, data="front", color=GREY, size=140, shape="square"),
            mark("circle", axes | {"color": style.colour_n(numbers), "tooltip": tips}, size=60, opacity=1),
        ]
        return style.chart(f"Trials: accuracy against {COSTS[cost]}", *layers, height=280, points=points, front=front)

    def _importance(self) -> Spec:
        rows = [{"setting": one.key, "share": short(100 * one.share)} for one in self.tune.importances[:SHOWN]]
        axes = {
            "y": field("setting:N", title=None, sort=None, axis={"labelLimit": 220}),
            "x": field("share:Q", title="share of the explained differences, %"),
        }
        tips = {"tooltip": style.tips(setting="", share=["%", ".1f"])}
        return style.chart("Importance of settings", mark("bar", axes | tips, color=GREY), height=280, settings=rows)

    def _best(self, cost: str) -> str:
        best = max(self.tune.front[cost], key=lambda point: point.accuracy)
        return f"The best trial has {fixed(best.accuracy, 1)} % after {number(getattr(best, cost))} {COSTS[cost]}"

    def _most(self) -> str:
        first = self.tune.importances[0]
        return f"{first.key} matters most: {100 * first.share:.0f} % of the explained differences"


def split(folders: Iterable[Path], runs: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Folders of tunes among these and one level below, and the runs that are of no tune."""
    tunes = [one for folder in folders for one in (folder, *sorted(folder.glob("*/"))) if (one / FILE).is_file()]
    inside = [folder.resolve() for folder in tunes]
    return tunes, [run for run in runs if not any(run.resolve().is_relative_to(folder) for folder in inside)]


def read_tunes(folders: Iterable[Path]) -> tuple[list[Tuned], list[tuple[str, str]]]:
    """All tunes that can be read; for each of the others its path and what is wrong with it."""
    good, damaged = [], []
    for folder in folders:
        try:
            good.append(Tuned(folder))
        except (CpflError, OSError) as error:
            damaged.append((shown(folder), shown(str(error))))
    return good, damaged
