"""Figures of what n costs and gains: the trade-off, every measure against n, and distilling earlier."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cpfl.report import style
from cpfl.report.cohort_figures import short
from cpfl.report.groups import Group
from cpfl.report.reading import RunFacts
from cpfl.report.style import BLUE, GREEN, GREY, Row, Rows, Spec, field, mark, only
from cpfl.report.tables import by_cohorts

AGAINST = [name for name in style.FIGURES if name.endswith("-against-n")]
HOLLOW: Spec = {"shape": "diamond", "size": 90, "strokeWidth": 2}


def trade_off(summaries: Iterable[Row], published: Sequence[Row] = (), recommended: int | None = None) -> Spec:
    """Accuracy against virtual hours: a point for every n, CPU hours as its size, the Pareto front drawn."""
    means = sorted(by_cohorts(summaries), key=lambda row: row["hours"])
    points = [
        {
            "n": row["cohorts"],
            "label": f"n = {row['cohorts']}" + (" (recommended)" if row["cohorts"] == recommended else ""),
            "hours": row["hours"],
            "accuracy": row["student_accuracy"],
            **_ends(row, "hours", "hours_"),
            **_ends(row, "student_accuracy", "accuracy_"),
            "cpu_hours": row["cpu_hours"],
            "seeds": row["seeds"],
            "rank": rank,
        }
        for rank, row in enumerate(means)
    ]
    paper = [
        {"label": f"paper, n = {row['n']}", "hours": row["hours"], "accuracy": row["student"]}
        for row in published
        if "hours" in row and "student" in row
    ]
    metric = means[0]["metric"] if means else style.ACCURACY
    base, tooltip = style.channels("trade-off", metric)
    label = {"text": field("label:N")}
    costs = sorted({float(f"{end(point['cpu_hours'] for point in points):.2g}") for end in (min, max)})
    size = field("cpu_hours:Q", title="CPU hours", scale={"range": [60, 700]}, legend={"values": costs})
    hours = {"x": field("hours_low:Q"), "x2": {"field": "hours_high"}}
    accuracies = {"y": field("accuracy_low:Q"), "y2": {"field": "accuracy_high"}}
    layers = [
        mark("line", base, data="front", color=GREEN, strokeDash=[6, 4], strokeWidth=2),
        mark("rule", base | hours, color=BLUE, opacity=0.5),
        mark("rule", base | accuracies, color=BLUE, opacity=0.5),
        mark("circle", base | tooltip | {"size": size}, color=BLUE, opacity=0.9),
        *(
            mark("text", base | label, only(f"datum.rank % 2 == {odd}"), dy=dy, fontWeight="bold")
            for odd, dy in enumerate((-22, 24)[: len(points)])  # neighbours would cover each other's names
        ),
    ]
    if paper:
        layers += [
            mark("point", base, data="paper", color=GREY, **HOLLOW),
            mark("text", base | label, data="paper", dy=16, color=GREY),
        ]
    values = "; ".join(
        f"n = {row['cohorts']}: {row['student_accuracy']:.1f} % after {row['hours']:.3g} h" for row in means
    )
    description = f"{style.named('{Metric}', metric)} against hours. {values}"
    return style.chart(description, *layers, height=340, points=points, front=pareto(points), paper=paper)


def pareto(points: Iterable[Row]) -> Rows:
    """The points that no other beats in both hours and accuracy, fastest first."""
    front: list[Row] = []
    for point in sorted(points, key=lambda p: (p["hours"], -p["accuracy"])):
        if not front or point["accuracy"] > front[-1]["accuracy"]:
            front.append({"hours": point["hours"], "accuracy": point["accuracy"]})
    return front


def against_n(name: str, series: Mapping[str, Sequence[Row]], published: Mapping[str, Sequence[Row]]) -> Spec:
    """A measure of AGAINST over n on a logarithmic axis: a line for every experiment, mean and spread over seeds."""
    metrics = {row["metric"] for rows in series.values() for row in rows}
    axis, keys = style.named(style.FIGURES[name]["axis"], common(metrics)), style.FIGURES[name]["lines"]
    points, paper = [], []
    for label, rows in series.items():
        for kind, (key, printed) in keys.items():
            fields = {"experiment": label, "model": kind}
            points += [
                {**fields, "n": row["cohorts"], "value": row[key], **_ends(row, key)}
                for row in rows
                if kind != "teachers" or row["cohorts"] > 1  # the model of n = 1 is the result, not a teacher
            ]
            beside = (row for row in published.get(label, ()) if printed in row)
            paper += [{**fields, "n": row["n"], "value": row[printed]} for row in beside]
    numbers = sorted({point["n"] for point in points + paper})
    several, scores = len(series) > 1, len(keys) > 1  # of student and teachers; the other measures are costs, from 0
    colour = style.colour_of("experiment", list(series)) if several else {"value": BLUE}
    x = field(
        "n:Q",
        title="n, the number of cohorts",
        scale={"type": "log", "base": 2, "nice": False, "padding": 16},
        axis={"values": numbers, "format": "d", "grid": False, "labelOverlap": True},
    )
    y = field("value:Q", title=axis, scale={"zero": False, "padding": 12} if scores else {"zero": True})
    base = {"x": x, "y": y, "color": colour, "detail": field("model:N")}
    dash = field("model:N", title=None, scale={"domain": list(keys), "range": [[1, 0], [4, 3]]})
    tooltip = {"tooltip": style.tips(experiment="", model=("of", ""), n="", value=(axis, ".4~g"))}
    layers = [
        mark("line", base | ({"strokeDash": dash} if scores else {}), strokeWidth=2),
        mark("rule", base | {"y": field("low:Q"), "y2": {"field": "high"}}, strokeWidth=2, opacity=0.6),
        mark("circle", base | tooltip, size=60, opacity=1),
    ]
    if paper:
        other = {"x": x, "y": y, "color": colour if several else {"value": GREY}}
        layers.append(mark("point", other | tooltip, data="paper", **HOLLOW))
    return style.chart(f"{axis} against n, for {', '.join(series)}", *layers, height=260, points=points, paper=paper)


def common(metrics: Collection[str]) -> str:
    """The name of a metric, or what several have in common."""
    return next(iter(metrics)) if len(metrics) == 1 else "score"


def quorum_rows(group: Group) -> Rows:
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


def budget_rows(group: Group) -> Rows:
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


def earlier(
    name: str, rows: Rows, numbers: Iterable[int], published: Iterable[Row] = (), metric: str = style.ACCURACY
) -> Spec:
    """Accuracy or hours of students that were distilled earlier: a curve for every n over the quorum or the hours."""
    paper = [{"n": row["n"], "hours": row["hours"], "accuracy": row["student"]} for row in published]
    every = sorted({*numbers, *(row["n"] for row in paper)})
    axes, tooltip = style.channels(name, metric)
    if axes["x"]["field"] == "quorum":
        axes["x"]["axis"] = {"values": sorted({row["quorum"] for row in rows})}
    base, key, axis = axes | {"color": style.colour_n(every)}, axes["y"]["field"], axes["y"]["title"]
    layers = [
        mark("line", base, strokeWidth=2),
        mark("rule", base | {"y": field(f"{key}_low:Q"), "y2": {"field": f"{key}_high"}}, opacity=0.6),
        mark("circle", base | tooltip, size=50, opacity=1),
    ]
    if paper:
        layers.append(mark("point", base | tooltip, data="paper", **HOLLOW))
    description = f"{axis}, for n = {', '.join(map(str, every))}"
    return style.chart(description, *layers, height=280, points=rows, paper=paper)


def _accuracy_at(run: RunFacts, moment: float) -> float | None:
    final = run.students[0]
    found = [final] if final.hours <= moment else [s for s in run.students if s.at == moment]
    return found[0].accuracy if found else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return {name: short(mean), f"{name}_low": short(mean - deviation), f"{name}_high": short(mean + deviation)}


def _ends(row: Row, key: str, prefix: str = "") -> dict[str, float]:
    """One standard deviation below and above the mean."""
    deviation = row[f"{key}_spread"]
    return {f"{prefix}low": row[key] - deviation, f"{prefix}high": row[key] + deviation}
