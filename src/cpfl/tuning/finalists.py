"""The end of a tune: five finalists get their final model, one is recommended, and fresh seeds are tested once.

Finalists are compared on clients' validation samples. Test samples are looked at after the recommendation is made, for
it and the references.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpfl import api
from cpfl.errors import CpflError, one_sentence
from cpfl.reports.reading import validation_accuracy
from cpfl.settings import Experiment
from cpfl.tuning.curve import merges
from cpfl.tuning.goal import Goal, Point
from cpfl.tuning.result import Trial

COUNT = 5
TIE = 0.5  # points of accuracy, or per cent of a cost, below which the simpler settings are recommended
NAME = "tune"  # of the distillation in a trial's run folder


def choose(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """The best trials, the best with one cohort among them."""
    feasible = [trial for trial in trials if _best(trial, goal) is not None]
    sign = 1 if goal.minimise else -1
    order = sorted(feasible, key=lambda one: (sign * goal.value(one.curve), one.number))
    chosen, single = order[:COUNT], [trial for trial in order if trial.cohorts == 1][:1]
    if single and single[0] not in chosen:
        chosen[-1] = single[0]
    return chosen


def finish(trial: Trial, folder: Path, goal: Goal, experiment: Experiment, common: Mapping[str, Any]) -> dict[str, Any]:
    """A finalist as tune.json has it: what its settings end with, evaluated on validation samples."""
    point = _best(trial, goal)
    assert point is not None, "finalists are feasible"
    entry = {"trial": trial.number, "point": asdict(point), "ensemble": point.accuracy, "error": ""}
    if experiment.cohorts == 1 or merges(experiment):
        return {
            **entry,
            "result": "cohort model" if experiment.cohorts == 1 else "merged model",
            "accuracy": point.accuracy,
        }
    given = {key: common[key] for key in ("model", "train", "test", "public", "data", "device") if key in common}
    path = folder / trial.path
    try:
        api.distill(path, name=NAME, at=f"{point.moment:.9f}h", **given)
    except CpflError as error:
        return {**entry, "result": "student", "accuracy": None, "error": one_sentence(error)}
    return {**entry, "result": "student", "accuracy": validation_accuracy(path / "distillations" / NAME)}


def recommend(finalists: Sequence[Mapping[str, Any]], trials: Mapping[int, Trial], goal: Goal) -> Mapping[str, Any]:
    """The finalist that is recommended: the best one, or the best with one cohort if that is as good, since it is
    simpler."""
    made = [one for one in finalists if one["accuracy"] is not None]
    good = [one for one in made if goal.accuracy is None or one["accuracy"] >= goal.accuracy] or made
    best = max(good, key=lambda one: (_score(one, goal, good is made), -one["trial"]))
    single = [one for one in good if trials[one["trial"]].cohorts == 1]
    if single:
        plain = max(single, key=lambda one: _score(one, goal, good is made))
        if _as_good(plain, best, goal, good is made):
            return plain
    return best


def _score(one: Mapping[str, Any], goal: Goal, short: bool) -> float:
    """`short`: no finalist reaches the accuracy, so the most accurate one is best."""
    if goal.minimise and not (short and goal.accuracy is not None and one["accuracy"] < goal.accuracy):
        return -goal.cost(Point(**one["point"]))
    return float(one["accuracy"])


def _as_good(plain: Mapping[str, Any], best: Mapping[str, Any], goal: Goal, short: bool) -> bool:
    one, other = _score(plain, goal, short), _score(best, goal, short)
    tie = TIE / 100 * abs(other) if goal.minimise else TIE
    return other - one <= tie


def paragraph(
    chosen: Mapping[str, Any],
    finalists: Sequence[Mapping[str, Any]],
    trials: Mapping[int, Trial],
    goal: Goal,
    tests: Sequence[Mapping[str, Any]],
    metric: str,
) -> str:
    """What to do, why, and how sure that is."""
    trial = trials[chosen["trial"]]
    point = Point(**chosen["point"])
    words = f"{trial.text}: {chosen['accuracy']:.1f} % validation {metric} after {point.hours:.3g} hours, "
    words += f"{point.cpu_hours:.3g} CPU hours and {point.traffic_gb:.3g} GB."
    made = [one for one in finalists if one["accuracy"] is not None and one is not chosen]
    other = [one for one in made if (trials[one["trial"]].cohorts == 1) != (trial.cohorts == 1)]
    rival = max(other, key=lambda one: one["accuracy"], default=None)
    if trial.cohorts == 1:
        lead = "Cohorts do not pay for this fleet and this goal."
        against = "No trial with cohorts is among the finalists."
        if rival is not None:
            against = f"The best finalist with cohorts ({trials[rival['trial']].text}) has {_facts(rival)}."
    else:
        lead = f"Cohorts pay for this fleet and this goal: n = {trial.cohorts}."
        against = "No trial with one cohort is within the limits."
        if rival is not None:
            against = f"The best with one cohort ({trials[rival['trial']].text}) has {_facts(rival)}."
    reached = goal.accuracy is None or chosen["accuracy"] >= goal.accuracy
    short = "" if reached else f" No finalist's final model reaches {goal.accuracy:g} %: this is the nearest."
    return " ".join(filter(None, [lead, words, against + short, _tested(tests, metric)]))


def _facts(one: Mapping[str, Any]) -> str:
    point = one["point"]
    return f"{one['accuracy']:.1f} % after {point['hours']:.3g} hours and {point['cpu_hours']:.3g} CPU hours"


def _tested(tests: Sequence[Mapping[str, Any]], metric: str) -> str:
    """What fresh seeds say, also where they contradict."""
    known = {one["who"]: one for one in tests if one["mean"] is not None}
    own = known.get("recommended")
    if own is None:
        return ""
    text = f"On test samples, over {len(own['seeds'])} fresh seeds: {own['mean']:.1f} ± {own['std']:.1f} %"
    rivals = [one for who, one in known.items() if one["allowed"] and one["trial"] != own["trial"]]
    if not rivals:
        return f"{text} {metric}."
    best = max(rivals, key=lambda one: one["mean"])
    text += f" {metric}; {best['who']} has {best['mean']:.1f} ± {best['std']:.1f} % after {best['hours']:.3g} hours."
    spread = max(own["std"], best["std"])
    if best["mean"] > own["mean"] + spread:
        return f"{text} The fresh seeds contradict the recommendation: consider {best['who']}."
    if own["mean"] - best["mean"] <= spread:
        return f"{text} The difference is within the spread of the seeds."
    return text


def tested(
    who: str, trial: int, allowed: bool, seeds: Sequence[int], paths: Sequence[Path], errors: Sequence[str]
) -> dict[str, Any]:
    """An entry of `tests`: the test accuracy of finished runs. What is not `allowed` contradicts a fixed setting."""
    entry = {"who": who, "trial": trial, "allowed": allowed, "seeds": list(seeds), "error": "; ".join(errors)}
    costs = {"hours": "hours", "cpu_hours": "cpu_hours", "traffic_gb": "comm_gb"}
    if errors:
        return {**entry, "accuracy": [], "mean": None, "std": None, **dict.fromkeys(costs)}
    summaries = [api.load_run(path).summary for path in paths]
    scores = [summary["student_accuracy"] for summary in summaries]
    means = {name: statistics.fmean(summary[key] for summary in summaries) for name, key in costs.items()}
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return {**entry, "accuracy": scores, "mean": statistics.fmean(scores), "std": spread, **means}


def _best(trial: Trial, goal: Goal) -> Point | None:
    return goal.best(trial.curve) if trial.state in ("complete", "pruned") else None
