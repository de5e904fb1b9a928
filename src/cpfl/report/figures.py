"""Figures of what n costs and gains: the trade-off, every measure against n, and distilling earlier."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from cpfl.report import style
from cpfl.report.tables import by_cohorts

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


def trade_off(
    summaries: Iterable[Row], title: str, published: Sequence[Row] = (), recommended: int | None = None
) -> style.Spec:
    """Accuracy against virtual hours: a point for every n, CPU hours as its size, the Pareto front drawn."""
    points: Rows = [
        {
            "n": row["cohorts"],
            "label": f"n = {row['cohorts']}" + (" (recommended)" if row["cohorts"] == recommended else ""),
            "hours": row["hours"],
            "accuracy": row["student_accuracy"],
            **_ends(row, "hours", "hours_"),
            **_ends(row, "student_accuracy", "accuracy_"),
            "cpu_hours": row["cpu_hours"],
            "seeds": row["seeds"],
        }
        for row in by_cohorts(summaries)
    ]
    points = [point | {"rank": i} for i, point in enumerate(sorted(points, key=lambda point: point["hours"]))]
    paper = [
        {"label": f"paper, n = {row['n']}", "hours": row["hours"], "accuracy": row["student"]}
        for row in with_hours(published)
    ]
    scale = tuple(sorted({float(f"{end(p['cpu_hours'] for p in points):.2g}") for end in (min, max)}))
    values = "; ".join(f"n = {p['n']}: {p['accuracy']:.1f} % after {p['hours']:.3g} h" for p in points)
    spec = _trade_off(title, f"Accuracy against hours. {values}", scale, len(points), bool(paper))
    return style.filled(spec, points=points, front=pareto(points), paper=paper)


@lru_cache(style.KEPT)
def _trade_off(title: str, description: str, cpu_scale: tuple[float, ...], count: int, paper: bool) -> style.Spec:
    x = style.hours_axis("virtual hours to convergence", zero=False, padding=40)
    y = alt.Y("accuracy:Q", title="test accuracy of the global model, %", scale=alt.Scale(zero=False, padding=36))
    base = style.data("points").encode(x=x, y=y)
    legend = alt.Legend(values=list(cpu_scale))
    cpu = alt.Size("cpu_hours:Q", title="CPU hours", scale=alt.Scale(range=[60, 700]), legend=legend)
    cost = ("CPU hours", ".1f")
    tips = style.tips(n="", accuracy=("accuracy, %", ".2f"), hours=".2f", cpu_hours=cost, seeds="")
    layers = [
        style.data("front").mark_line(color=style.GREEN, strokeDash=[6, 4], strokeWidth=2).encode(x=x, y=y),
        base.mark_rule(color=style.BLUE, opacity=0.5).encode(x=alt.X("hours_low:Q"), x2="hours_high:Q"),
        base.mark_rule(color=style.BLUE, opacity=0.5).encode(y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        base.mark_circle(color=style.BLUE, opacity=0.9).encode(size=cpu, tooltip=tips),
        *(
            base.transform_filter(f"datum.rank % 2 == {odd}").mark_text(dy=dy, fontWeight="bold").encode(text="label:N")
            for odd, dy in enumerate((-22, 24)[:count])  # neighbours would cover each other's names
        ),
    ]
    if paper:
        beside = style.data("paper").encode(x=x, y=y)
        layers += [
            beside.mark_point(shape="diamond", size=90, color=style.GREY, strokeWidth=2),
            beside.mark_text(dy=16, color=style.GREY).encode(text="label:N"),
        ]
    return style.finished(alt.layer(*layers), title, description, 340)


def with_hours(published: Iterable[Row]) -> list[Row]:
    """The published figures that give both accuracy and hours."""
    return [row for row in published if "hours" in row and "student" in row]


def pareto(points: Iterable[Row]) -> Rows:
    """The points that no other beats in both hours and accuracy, fastest first."""
    front: Rows = []
    for point in sorted(points, key=lambda p: (p["hours"], -p["accuracy"])):
        if not front or point["accuracy"] > front[-1]["accuracy"]:
            front.append({"hours": point["hours"], "accuracy": point["accuracy"]})
    return front


def against_n(
    series: Mapping[str, Sequence[Row]],
    published: Mapping[str, Sequence[Row]],
    keys: Mapping[str, tuple[str, str]],
    title: str,
    axis: str,
) -> style.Spec:
    """A measure against n on a logarithmic axis: a line for every experiment, mean and spread style.over seeds.

    `keys` gives for each line of an experiment (student, teachers) the measure and the name of its published figure.
    """
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
    numbers = tuple(sorted({point["n"] for point in points + paper}))
    spec = _against_n(tuple(series), tuple(keys), numbers, title, axis, bool(paper))
    return style.filled(spec, points=points, paper=paper)


@lru_cache(style.KEPT)
def _against_n(
    series: tuple[str, ...], keys: tuple[str, ...], numbers: tuple[int, ...], title: str, axis: str, paper: bool
) -> style.Spec:
    several, accuracy = len(series) > 1, len(keys) > 1  # of student and teachers; the other measures are costs, from 0
    colours = style.colour_of("experiment", series) if several else alt.value(style.BLUE)
    x = style.log_n(numbers)
    y = alt.Y("value:Q", title=axis, scale=alt.Scale(zero=False, padding=12) if accuracy else alt.Scale(zero=True))
    base = style.data("points").encode(x=x, y=y, color=colours, detail="model:N")
    dash = alt.StrokeDash("model:N", title=None, scale=alt.Scale(domain=list(keys), range=[[1, 0], [4, 3]]))
    tips = style.tips(experiment="", model=("of", ""), n="", value=(axis, ".4~g"))
    line = base.mark_line(strokeWidth=2)
    layers = [
        line.encode(strokeDash=dash) if accuracy else line,
        base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_circle(size=60, opacity=1).encode(tooltip=tips),
    ]
    if paper:
        beside = style.data("paper").encode(x=x, y=y, color=colours if several else alt.value(style.GREY), tooltip=tips)
        layers.append(beside.mark_point(shape="diamond", size=90, strokeWidth=2))
    return style.finished(alt.layer(*layers), title, f"{axis} against n, for {', '.join(series)}", 260)


def quorum(rows: Rows, numbers: tuple[int, ...], field: str, title: str, axis: str) -> style.Spec:
    """Accuracy or hours against the share of cohorts that had stopped."""
    steps = tuple(sorted({row["quorum"] for row in rows}))
    return style.filled(_curves(steps, numbers, field, title, axis, False), points=rows, paper=[])


def budget(rows: Rows, numbers: Sequence[int], published: Sequence[Row], title: str) -> style.Spec:
    """Accuracy against the time budget."""
    paper = [{"n": row["n"], "hours": row["hours"], "accuracy": row["student"]} for row in published]
    every = tuple(sorted({*numbers, *(row["n"] for row in paper)}))
    return style.filled(_curves((), every, "accuracy", title, "accuracy, %", bool(paper)), points=rows, paper=paper)


@lru_cache(style.KEPT)
def _curves(
    quorums: tuple[float, ...], numbers: tuple[int, ...], field: str, title: str, axis: str, paper: bool
) -> style.Spec:
    """One curve for every n, over the quorums or, without them, over the time budget."""
    over = "quorum" if quorums else "hours"
    if quorums:
        scale, ticks = alt.Scale(zero=False, nice=False, padding=14), alt.Axis(values=list(quorums))
        x = alt.X("quorum:Q", title="quorum: share of cohorts that had stopped, %", scale=scale, axis=ticks)
    else:
        scale, ticks = alt.Scale(padding=14), alt.Axis(format=style.PLAIN)
        x = alt.X("hours:Q", title="time budget, virtual hours", scale=scale, axis=ticks)
    y = alt.Y(f"{field}:Q", title=axis, scale=alt.Scale(zero=False, padding=12))
    base = style.data("points").encode(x=x, y=y, color=style.colour_n(numbers))
    tips = style.tips(n="", **{over: ("at", ".4~g"), field: (axis, ".4~g")})
    layers = [
        base.mark_line(strokeWidth=2),
        base.mark_rule(opacity=0.6).encode(y=alt.Y(f"{field}_low:Q"), y2=f"{field}_high:Q"),
        base.mark_circle(size=50, opacity=1).encode(tooltip=tips),
    ]
    if paper:
        beside = style.data("paper").encode(x=x, y=y, color=style.colour_n(numbers), tooltip=tips)
        layers.append(beside.mark_point(shape="diamond", size=90, strokeWidth=2))
    return style.finished(alt.layer(*layers), title, f"{axis}, for n = {', '.join(map(str, numbers))}", 280)


def _ends(row: Row, key: str, prefix: str = "") -> dict[str, float]:
    """One standard deviation below and above the mean."""
    deviation = row[f"{key}_spread"]
    return {f"{prefix}low": row[key] - deviation, f"{prefix}high": row[key] + deviation}
