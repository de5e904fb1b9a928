"""Pictures of what n costs and gains: the trade-off, everything against n, and what stopping earlier would give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from cpfl.report.points import Rows
from cpfl.report.style import (
    BLUE,
    GREEN,
    GREY,
    KEPT,
    PLAIN,
    colour_n,
    colour_of,
    data,
    filled,
    finished,
    log_n,
    save,
    tip,
)
from cpfl.report.tables import by_cohorts

__all__ = ["against_n", "budget", "pareto", "quorum", "save", "trade_off"]

Spec = dict[str, Any]
HOURS = "virtual hours to convergence"


def trade_off(
    summaries: Iterable[Mapping[str, Any]],
    title: str,
    published: Sequence[Mapping[str, Any]] = (),
    recommended: int | None = None,
) -> Spec:
    """Accuracy against virtual hours: a point for every n, CPU hours as its size, the Pareto front drawn."""
    points = []
    for row in by_cohorts(summaries):
        n = row["cohorts"]
        ends = {
            f"{name}_{end}": row[key] + sign * row[f"{key}_spread"]
            for name, key in (("hours", "hours"), ("accuracy", "student_accuracy"))
            for end, sign in (("low", -1), ("high", 1))
        }
        label = f"n = {n}" + (" (recommended)" if n == recommended else "")
        own = {"n": n, "label": label, "hours": row["hours"], "accuracy": row["student_accuracy"]}
        points.append(own | ends | {"cpu_hours": row["cpu_hours"], "seeds": row["seeds"]})
    points = [point | {"place": i} for i, point in enumerate(sorted(points, key=lambda point: point["hours"]))]
    front = pareto(points)
    paper = [
        {"label": f"paper, n = {row['n']}", "hours": row["hours"], "accuracy": row["student"]}
        for row in with_hours(published)
    ]
    scale = tuple(sorted({float(f"{end(p['cpu_hours'] for p in points):.2g}") for end in (min, max)}))
    said = "; ".join(f"n = {p['n']}: {p['accuracy']:.1f} % after {p['hours']:.3g} h" for p in points)
    spec = _trade_off(title, f"Accuracy against hours. {said}", scale, len(points), bool(paper))
    return filled(spec, points=points, front=front, paper=paper)


@lru_cache(KEPT)
def _trade_off(title: str, said: str, cpu_scale: tuple[float, ...], count: int, paper: bool) -> Spec:
    x = alt.X("hours:Q", title=HOURS, scale=alt.Scale(zero=False, padding=40), axis=alt.Axis(format=PLAIN, tickCount=8))
    y = alt.Y("accuracy:Q", title="test accuracy of the global model, %", scale=alt.Scale(zero=False, padding=36))
    base = data("points").encode(x=x, y=y)
    cpu = alt.Size(
        "cpu_hours:Q", title="CPU hours", scale=alt.Scale(range=[60, 700]), legend=alt.Legend(values=list(cpu_scale))
    )
    tips = [tip("n", "n"), tip("accuracy", "accuracy, %", ".2f"), tip("hours", "hours", ".2f")]
    tips += [tip("cpu_hours", "CPU hours", ".1f"), tip("seeds", "seeds")]
    layers = [
        data("front").mark_line(color=GREEN, strokeDash=[6, 4], strokeWidth=2).encode(x=x, y=y),
        base.mark_rule(color=BLUE, opacity=0.5).encode(x=alt.X("hours_low:Q"), x2="hours_high:Q"),
        base.mark_rule(color=BLUE, opacity=0.5).encode(y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
        base.mark_circle(color=BLUE, opacity=0.9).encode(size=cpu, tooltip=tips),
        *(
            base.transform_filter(f"datum.place % 2 == {odd}")
            .mark_text(dy=dy, fontWeight="bold")
            .encode(text="label:N")
            for odd, dy in enumerate((-22, 24)[:count])  # neighbours would cover each other's names
        ),
    ]
    if paper:
        beside = data("paper").encode(x=x, y=y)
        layers += [
            beside.mark_point(shape="diamond", size=90, color=GREY, strokeWidth=2),
            beside.mark_text(dy=16, color=GREY).encode(text="label:N"),
        ]
    return finished(alt.layer(*layers), title, said, 340)


def with_hours(published: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The published figures that have a place among accuracy and hours."""
    return [row for row in published if "hours" in row and "student" in row]


def pareto(points: Iterable[Mapping[str, Any]]) -> Rows:
    """The points that no other beats in both hours and accuracy, fastest first."""
    front: Rows = []
    for point in sorted(points, key=lambda p: (p["hours"], -p["accuracy"])):
        if not front or point["accuracy"] > front[-1]["accuracy"]:
            front.append({"hours": point["hours"], "accuracy": point["accuracy"]})
    return front


def against_n(
    series: Mapping[str, Sequence[Mapping[str, Any]]],
    published: Mapping[str, Sequence[Mapping[str, Any]]],
    keys: Mapping[str, tuple[str, str]],
    title: str,
    axis: str,
) -> Spec:
    """A measure against n on a logarithmic axis: a line for every experiment, mean and spread over seeds.

    `keys` says for each line of an experiment (student, teachers) the measure and the name of its published figure.
    """
    points, paper = [], []
    for label, rows in series.items():
        for kind, (key, printed) in keys.items():
            for row in rows:
                if kind == "teachers" and row["cohorts"] == 1:  # its model is the result, nobody's teacher
                    continue
                mean, deviation = row[key], row[f"{key}_spread"]
                ends = {"low": mean - deviation, "high": mean + deviation}
                points.append({"experiment": label, "model": kind, "n": row["cohorts"], "value": mean, **ends})
            for row in published.get(label, ()):
                if printed in row:
                    paper.append({"experiment": label, "model": kind, "n": row["n"], "value": row[printed]})
    numbers = tuple(sorted({point["n"] for point in points + paper}))
    spec = _against_n(tuple(series), tuple(keys), numbers, title, axis, bool(paper))
    return filled(spec, points=points, paper=paper)


@lru_cache(KEPT)
def _against_n(
    series: tuple[str, ...], keys: tuple[str, ...], numbers: tuple[int, ...], title: str, axis: str, paper: bool
) -> Spec:
    colours = colour_of("experiment", list(series)) if len(series) > 1 else alt.value(BLUE)
    accuracy = len(keys) > 1  # of student and teachers; what else there is are costs, which begin at nothing
    x = log_n(numbers)
    y = alt.Y("value:Q", title=axis, scale=alt.Scale(zero=False, padding=12) if accuracy else alt.Scale(zero=True))
    base = data("points").encode(x=x, y=y, color=colours, detail="model:N")
    dash = alt.StrokeDash("model:N", title=None, scale=alt.Scale(domain=list(keys), range=[[1, 0], [4, 3]]))
    tips = [tip("experiment", "experiment"), tip("model", "of"), tip("n", "n"), tip("value", axis, ".4~g")]
    line = base.mark_line(strokeWidth=2)
    layers = [
        line.encode(strokeDash=dash) if accuracy else line,
        base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_circle(size=60, opacity=1).encode(tooltip=tips),
    ]
    if paper:
        beside = data("paper").encode(x=x, y=y, color=colours if len(series) > 1 else alt.value(GREY), tooltip=tips)
        layers.append(beside.mark_point(shape="diamond", size=90, strokeWidth=2))
    said = f"{axis} against n, for {', '.join(series)}"
    return finished(alt.layer(*layers), title, said, 260)


def quorum(rows: Rows, numbers: Sequence[int], field: str, title: str, axis: str) -> Spec:
    """Accuracy or hours as the share of cohorts that is waited for goes up."""
    steps = tuple(sorted({row["quorum"] for row in rows}))
    return filled(_curves("quorum", steps, tuple(numbers), field, title, axis, False), points=rows, paper=[])


def budget(rows: Rows, numbers: Sequence[int], published: Sequence[Mapping[str, Any]], title: str) -> Spec:
    """Accuracy against the hours that one is willing to wait."""
    paper = [{"n": row["n"], "hours": row["hours"], "accuracy": row["student"]} for row in published]
    every = tuple(sorted({*numbers, *(p["n"] for p in paper)}))
    spec = _curves("hours", (), every, "accuracy", title, "accuracy, %", bool(paper))
    return filled(spec, points=rows, paper=paper)


@lru_cache(KEPT)
def _curves(
    over: str, steps: tuple[float, ...], numbers: tuple[int, ...], field: str, title: str, axis: str, paper: bool
) -> Spec:
    if over == "quorum":
        x = alt.X(
            "quorum:Q",
            title="quorum: share of cohorts that had stopped, %",
            scale=alt.Scale(zero=False, nice=False, padding=14),
            axis=alt.Axis(values=list(steps)),
        )
    else:
        scale, ticks = alt.Scale(padding=14), alt.Axis(format=PLAIN)
        x = alt.X("hours:Q", title="time budget, virtual hours", scale=scale, axis=ticks)
    y = alt.Y(f"{field}:Q", title=axis, scale=alt.Scale(zero=False, padding=12))
    base = data("points").encode(x=x, y=y, color=colour_n(numbers))
    tips = [tip("n", "n"), tip(over, "at", ".4~g"), tip(field, axis, ".4~g")]
    layers = [
        base.mark_line(strokeWidth=2),
        base.mark_rule(opacity=0.6).encode(y=alt.Y(f"{field}_low:Q"), y2=f"{field}_high:Q"),
        base.mark_circle(size=50, opacity=1).encode(tooltip=tips),
    ]
    if paper:
        beside = data("paper").encode(x=x, y=y, color=colour_n(numbers), tooltip=tips)
        layers.append(beside.mark_point(shape="diamond", size=90, strokeWidth=2))
    said = f"{axis}, for n = {', '.join(map(str, numbers))}"
    return finished(alt.layer(*layers), title, said, 280)
