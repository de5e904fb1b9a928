"""From the settings of a trial to the experiment that is run: how long it trains, and when it is evaluated."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cpfl.errors import CpflError, SettingError
from cpfl.federation.messages import Cost
from cpfl.privacy.label_counts import cohort_counts
from cpfl.settings import Experiment, effects, experiment_file
from cpfl.task.loading import absolute
from cpfl.task.population import assign_cohorts
from cpfl.task.task import Task
from cpfl.tuning.curve import evaluator
from cpfl.tuning.goal import COSTS, WORDS, Goal
from cpfl.tuning.space import Dimension, Space, seconds_text, settings_of

LONGER = 1.25  # than the first round's costs say: rounds differ
SAME = ("assignment", "federation", "meetings", "stopping", "distillation")  # sections that leave data and model alone
LoadTask = Callable[[Experiment], Task]


@dataclass(frozen=True)
class Plan:
    """A trial that can be run: its experiment, and the seconds between two evaluations."""

    experiment: Experiment
    interval: float


class Planner:
    """Makes trials of one base experiment for one goal."""

    def __init__(self, base: Experiment, goal: Goal, points: int, task: Task, load: LoadTask) -> None:
        """`task` is that of the base; `load` builds one that has other data, another model or other devices."""
        self.base, self.goal, self._points, self._task, self._load = base, goal, points, task, load

    def experiment(self, settings: Mapping[str, Any]) -> Experiment:
        """The base with these settings; all that they leave without effect is at its default."""
        return absolute(experiment_file.with_settings(self.base, settings, strict=False))

    def plan(self, settings: Mapping[str, Any]) -> Plan:
        """The experiment that a trial runs: until a limit, with snapshots from which it can be distilled."""
        chosen = self.experiment(settings)
        task = self.task(chosen)
        evaluation = evaluator(task, torch.device("cpu")).cost()
        seconds = self._seconds(task) - evaluation.seconds
        if seconds <= 0:
            raise SettingError(
                f"one evaluation of n = {chosen.cohorts} takes {evaluation.seconds / 3600:.3g} h: the hours end before"
            )
        interval = math.floor(seconds / self._points * 1000) / 1000 or seconds / self._points
        return Plan(self.limited(chosen, self._points * interval, interval), interval)

    def limited(self, experiment: Experiment, seconds: float, interval: float = 0.0) -> Experiment:
        """The experiment, until so many virtual seconds have passed; `interval` seconds between snapshots."""
        keep = "ema" if experiment.stopping.keep == "ema" else "last"  # the best by validation has no curve of its own
        limit = {"stopping.rule": "budget", "stopping.max_hours": seconds / 3600, "stopping.max_cpu_hours": 0}
        snapshots = seconds_text(interval) if interval else ""
        return experiment_file.with_settings(
            experiment, {**limit, "stopping.keep": keep, "snapshots": snapshots}, strict=False
        )

    def task(self, experiment: Experiment) -> Task:
        """Its task, from the base's where data, model and devices are the same."""
        one, other = (effects.flat(each) for each in (experiment, self.base))
        same = all(one[key] == other[key] for key in one if key.partition(".")[0] not in (*SAME, "cohorts"))
        if not same or experiment.model.by_cohort:
            return self._load(experiment)
        data, base = self._task.data, self._task
        cohorts = assign_cohorts(experiment, data, base.fleet, base.model_bytes)
        counts = cohort_counts(
            data.label_counts, data.classes, cohorts, experiment.privacy, experiment.seed, data.sensitivity
        )
        return replace(base, experiment=experiment, cohorts=cohorts, label_counts=counts)

    def _seconds(self, task: Task) -> float:
        """How long a trial trains: until its first limit, by what its cohorts' first rounds cost."""
        costs = first_rounds(task)
        rates = {
            "cpu_hours": math.fsum(cost.cpu_seconds / cost.seconds for cost in costs) / 3600,
            "traffic_gb": math.fsum(cost.bytes / cost.seconds for cost in costs) / 1e9,
        }
        limits = self.goal.limits
        found = [LONGER * max(cost.seconds for cost in costs) * task.experiment.max_rounds]
        if "hours" in limits:
            found.append(limits["hours"] * 3600)
        found += [LONGER * limits[cost] / rate for cost, rate in rates.items() if cost in limits and rate]
        return min(found)

    def check_possible(self, space: Space) -> None:
        """Refuse limits that even the cheapest round of the cheapest settings exceeds."""
        cheapest: dict[str, tuple[float, Experiment]] = {}
        for experiment, rounds in self._cheap(space):
            for one in rounds:
                spent = (one.seconds / 3600, one.cpu_seconds / 3600, one.bytes / 1e9)
                for name, cost in zip(COSTS, spent, strict=True):
                    if name not in cheapest or cost < cheapest[name][0]:
                        cheapest[name] = cost, experiment
        for name, limit in self.goal.limits.items():
            if name in cheapest and cheapest[name][0] > limit:
                cost, experiment = cheapest[name]
                raise SettingError(
                    f"{name.removesuffix('_gb')} = {limit:g} is impossible: the cheapest round of a cohort takes "
                    f"{cost:.3g} {WORDS[name]} (with cohorts = {experiment.cohorts})"
                )

    def _cheap(self, space: Space) -> Iterator[tuple[Experiment, list[Cost]]]:
        """The first rounds with the least of everything, for each n."""
        counts = next((one.values for one in space if one.key == "cohorts" and one.values), (self.base.cohorts,))
        for n in counts:
            choose = partial(_least, cohorts=n)
            with suppress(CpflError):  # what does not fit together is a record of its trial
                experiment = self.experiment(settings_of(space, self.base, choose))
                yield experiment, first_rounds(self.task(experiment))


def first_rounds(task: Task) -> list[Cost]:
    """What the first round of every cohort costs."""
    return [task.session(cohort).expected_cost() for cohort in range(len(task.cohorts))]


def _least(one: Dimension, cohorts: int) -> Any:
    """The smallest number above 0, or the first value; of cohorts so many."""
    if one.key == "cohorts":
        return cohorts
    numbers = [value for value in one.values or (one.low,) if isinstance(value, int | float) and value > 0]
    return min(numbers) if numbers else (one.values or (one.low,))[0]
