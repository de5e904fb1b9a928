"""Rows for the pictures, from runs: curves thinned out, finish times, waiting, quorums, budgets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from cpfl.report.groups import Group
from cpfl.report.reading import RunFacts

POINTS = 6000  # in all curves of one picture: enough for the eye, small enough for the page
FEWEST = 16  # in one curve, however many there are
SCATTERED = 3000  # dots in one picture
Rows = list[dict[str, Any]]


def losses(group: Group, most: int = POINTS) -> Rows:
    """The judged validation loss of every cohort over time, for one seed of every n."""
    drawn = [(run, cohort, trail) for run in first_seeds(group) for cohort, trail in enumerate(run.trails)]
    each = max(FEWEST, most // max(1, len(drawn)))
    rows: Rows = []
    for run, cohort, trail in drawn:
        for hours, loss in thinned(trail.curve, each):
            rows.append({"n": run.n, "cohort": cohort, "hours": short(hours), "loss": short(loss)})
        if trail.curve and trail.stop:
            rows[-1]["stop"] = trail.stop
    return rows


def waits(group: Group) -> Rows:
    """One bar a cohort, in order of their ends: how long its average participant worked, how long that one waited."""
    rows = []
    for run in first_seeds(group):
        bars: Rows = []
        for cohort, trail in enumerate(run.trails):
            if not trail.rounds:
                continue
            client, held_up = trail.slowest.most_common(1)[0]
            total = trail.clock
            bars.append(
                {
                    "n": run.n,
                    "cohort": cohort,
                    "rounds": trail.rounds,
                    "hours": short(total / 3600),
                    "busy": short(trail.busy / 3600),
                    "waited": short(100 * (1 - trail.busy / total) if total else 0.0),
                    "slowest": client,
                    "held_up": short(100 * held_up / total if total else 0.0),
                    "stop": trail.stop or "still training",
                }
            )
        slots = max(len(bars), 6)  # a few bars do not fill the height
        for rank, bar in enumerate(sorted(bars, key=lambda bar: bar["hours"])):
            rows.append(bar | {"top": short((rank + 0.1) / slots), "bottom": short((rank + 0.9) / slots)})
    return rows


def finishes(group: Group, most: int = 200) -> Rows:
    """The share of the cohorts of each n that had stopped by an hour, all seeds together."""
    rows = []
    for n in group.numbers:
        cohorts = [cohort for run in group.of(n) for cohort in run.cohorts]
        every = sum(len(run.about["plan"]) for run in group.of(n))
        ended = sorted(cohort.hours for cohort in cohorts if cohort.stop)
        steps = [
            {"n": n, "hours": short(hours), "share": short(100 * (i + 1) / every)} for i, hours in enumerate(ended)
        ]
        if steps:
            last = dict(steps[-1], last=True) if len(ended) == every else steps[-1]
            rows += [{"n": n, "hours": 0, "share": 0}, *thinned(steps[:-1], most), last]
    return rows


def sizes(group: Group) -> Rows:
    """Samples and hours of every cohort, all seeds, for n above 1."""
    runs = [run for n in group.numbers if n > 1 for run in group.of(n)]
    rows = [
        {"n": run.n, "seed": run.experiment.seed, "samples": c.samples, "hours": short(c.hours)}
        for run in runs
        for c in run.cohorts
        if c.samples is not None and c.stop
    ]
    return thinned(rows, SCATTERED)


def judged(group: Group) -> Rows:
    """What all cohorts were worth together each time they were judged, for one seed of every n."""
    rows = []
    for run in first_seeds(group):
        for line in run.judged:
            row = {"n": run.n, "round": line["round"], "cpu": short(line["cpu_hours"]), "worth": short(line["value"])}
            rows.append(row | {"stop": line.get("decision") == "stop"})
    return rows


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
    moments = sorted({s.at for run in group.runs for s in run.students if s.at is not None})
    ended = [run for run in group.runs if run.summary]
    longest = max((run.students[0].hours for run in ended), default=0.0)
    rows = []
    for n in sorted({run.n for run in ended}):
        every = [run for run in ended if run.n == n]
        runs = [run for run in every if any(s.at is not None for s in run.students)] or every  # seeds that were studied
        own_end = max(run.students[0].hours for run in runs)
        for moment in sorted({*moments, own_end, longest}):
            known = [accuracy for run in runs if (accuracy := _accuracy_at(run, moment)) is not None]
            if len(known) == len(runs):  # a mean over other seeds than its neighbours' would jump
                rows.append({"n": n, "hours": short(moment), **_spread("accuracy", known)})
    return rows


def first_seeds(group: Group) -> list[RunFacts]:
    """One run of every n: the paper, too, draws curves of one seed."""
    return [group.of(n)[0] for n in group.numbers]


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, evenly, with the first and the last."""
    if len(rows) <= most or most < 2:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(i * step)] for i in range(most)]


def _accuracy_at(run: RunFacts, moment: float) -> float | None:
    final = run.students[0]
    if final.hours <= moment:
        return final.accuracy
    return next((s.accuracy for s in run.students if s.at == moment), None)


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    known = list(values)
    mean, deviation = statistics.fmean(known), statistics.pstdev(known)
    return {name: short(mean), f"{name}_low": short(mean - deviation), f"{name}_high": short(mean + deviation)}


def short(value: float) -> float:
    """Five digits are more than a picture shows."""
    return float(f"{value:.5g}")
