"""Rows for the figures, from groups of runs: thinned curves, finish times, waiting, quorums, time budgets."""

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpfl.report.groups import Group
from cpfl.report.reading import CohortHistory, RunFacts

POINTS = 6000  # in all curves of one figure: enough for the eye, small enough for the page
FEWEST = 16  # in one curve, however many there are
SCATTERED = 3000  # dots in one figure
STEPS = 120  # moments at which runs are compared
Rows = list[dict[str, Any]]


def losses(cohorts: Sequence[tuple[dict[str, Any], CohortHistory]]) -> Rows:
    """The smoothed validation loss of cohorts over time; each comes with the fields that its rows carry."""
    each = max(FEWEST, POINTS // max(1, len(cohorts)))
    rows: Rows = []
    for fields, history in cohorts:
        curve = thinned(history.curve, each)
        rows += [{**fields, "hours": short(hours), "loss": short(loss)} for hours, loss in curve]
        if curve and history.stop:
            rows[-1] |= {"stop": history.stop, "rounds": history.rounds}
    return rows


def mean_losses(runs: Mapping[str, Sequence[CohortHistory]]) -> Rows:
    """The mean validation loss over the cohorts of each run; a cohort that has stopped keeps its last value."""
    rows: Rows = []
    for run, histories in runs.items():
        curves = [history.curve for history in histories]
        if not all(curves):  # a mean over some of the cohorts would jump
            continue
        first, last = max(curve[0][0] for curve in curves), max(curve[-1][0] for curve in curves)
        steps = STEPS if last > first else 0
        for moment in (first + (last - first) * i / max(1, steps) for i in range(steps + 1)):
            values = (curve[bisect_right(curve, (moment, float("inf"))) - 1][1] for curve in curves)
            rows.append({"run": run, "hours": short(moment), "loss": short(sum(values) / len(curves))})
    return rows


def waits(group: Group) -> Rows:
    """One bar for every cohort, by stopping time: how long its average participant worked and how long it waited."""
    rows = []
    for run in group.first_seeds:
        bars: Rows = []
        for cohort, history in enumerate(run.histories):
            if not history.rounds:
                continue
            client, held_up = history.slowest.most_common(1)[0]
            total = history.clock
            bars.append(
                {
                    "n": run.n,
                    "cohort": cohort,
                    "rounds": history.rounds,
                    "hours": short(total / 3600),
                    "busy": short(history.busy / 3600),
                    "waited": short(100 * (1 - history.busy / total) if total else 0.0),
                    "slowest": client,
                    "held_up": short(100 * held_up / total if total else 0.0),
                    "stop": history.stop or "still training",
                }
            )
        slots = max(len(bars), 6)  # a few bars do not fill the figure
        for rank, bar in enumerate(sorted(bars, key=lambda bar: bar["hours"])):
            rows.append(bar | {"top": short((rank + 0.1) / slots), "bottom": short((rank + 0.9) / slots)})
    return rows


def finishes(group: Group, most: int = 200) -> Rows:
    """The share of the cohorts of each n that had stopped by an hour, all seeds together."""
    rows = []
    for n in group.numbers:
        runs = group.runs_of(n)
        total = sum(len(run.about["cohorts"]) for run in runs)
        ended = sorted(cohort.hours for run in runs for cohort in run.cohorts if cohort.stop)
        steps = [{"n": n, "hours": short(h), "share": short(100 * (i + 1) / total)} for i, h in enumerate(ended)]
        if steps:
            last = steps[-1] | ({"last": True} if len(ended) == total else {})
            rows += [{"n": n, "hours": 0, "share": 0}, *thinned(steps[:-1], most), last]
    return rows


def sizes(group: Group) -> Rows:
    """Samples and hours of every cohort, all seeds, for n above 1."""
    rows = [
        {"n": run.n, "seed": run.experiment.seed, "samples": cohort.samples, "hours": short(cohort.hours)}
        for n in group.numbers
        if n > 1
        for run in group.runs_of(n)
        for cohort in run.cohorts
        if cohort.samples is not None and cohort.stop
    ]
    return thinned(rows, SCATTERED)


def evaluations(group: Group) -> Rows:
    """Every evaluation of the ensemble of all cohort models, for one seed of every n."""
    return [
        {
            "n": run.n,
            "round": line["round"],
            "cpu": short(line["cpu_hours"]),
            "accuracy": short(line["accuracy"]),
            "stop": line.get("decision") == "stop",
        }
        for run in group.first_seeds
        for line in run.evaluations
    ]


def quorums(group: Group) -> Rows:
    """Accuracy and hours by the share of cohorts that had stopped; n = 1 has no quorum to wait for."""
    found: dict[tuple[int, float], list[Any]] = defaultdict(list)
    for run in group.runs:
        if run.n > 1:
            for quorum, student in {s.quorum: s for s in reversed(run.students) if s.at is None}.items():
                found[run.n, quorum].append(student)
    return [
        {
            "n": n,
            "quorum": short(100 * quorum),
            **_spread("accuracy", [student.accuracy for student in students]),
            **_spread("hours", [student.hours for student in students]),
        }
        for (n, quorum), students in sorted(found.items())
    ]


def budgets(group: Group) -> Rows:
    """Accuracy if the cohorts are distilled after so many hours; a run that has ended gives its final student."""
    moments = {s.at for run in group.runs for s in run.students if s.at is not None}
    ended = [run for run in group.runs if run.summary]
    longest = max((run.students[0].hours for run in ended), default=0.0)
    rows = []
    for n in sorted({run.n for run in ended}):
        every = [run for run in ended if run.n == n]
        runs = [run for run in every if any(s.at is not None for s in run.students)] or every  # redistilled seeds
        own_end = max(run.students[0].hours for run in runs)
        for moment in sorted({*moments, own_end, longest}):
            known = [accuracy for run in runs if (accuracy := _accuracy_at(run, moment)) is not None]
            if len(known) == len(runs):  # a mean over other seeds than its neighbours' would jump
                rows.append({"n": n, "hours": short(moment), **_spread("accuracy", known)})
    return rows


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, evenly spaced, with the first and the last."""
    if len(rows) <= most or most < 2:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(i * step)] for i in range(most)]


def short(value: float) -> float:
    """Five digits are more than a figure shows."""
    return float(f"{value:.5g}")


def _accuracy_at(run: RunFacts, moment: float) -> float | None:
    final = run.students[0]
    if final.hours <= moment:
        return final.accuracy
    return next((s.accuracy for s in run.students if s.at == moment), None)


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    mean, deviation = statistics.fmean(known), statistics.pstdev(known)
    return {name: short(mean), f"{name}_low": short(mean - deviation), f"{name}_high": short(mean + deviation)}
