"""Pictures of what happens inside the cohorts: losses and stops, the timeline, finish times, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from cpfl.report.points import Rows
from cpfl.report.style import BLUE, GREY, KEPT, ORANGE, PLAIN, colour_n, colour_of, data, filled, finished, tip

Spec = dict[str, Any]
NAMED = 24  # bars that still have room for a name each
FAINT = {8: 0.9, 32: 0.5, 10**9: 0.25}  # so many curves: how opaque each


def losses(rows: Rows, numbers: Sequence[int], chosen: int, title: str) -> Spec:
    """Validation loss of every cohort with its stop, against the run that was not partitioned."""
    return filled(_losses(tuple(numbers), chosen, title), cohorts=rows)


@lru_cache(KEPT)
def _losses(numbers: tuple[int, ...], chosen: int, title: str) -> Spec:
    which = _which_n(numbers, chosen)
    x = alt.X("hours:Q", title="virtual hours", axis=alt.Axis(format=PLAIN, tickCount=8))
    y = alt.Y("loss:Q", title="validation loss, moving average", scale=alt.Scale(zero=False))
    cohorts = data("cohorts").transform_filter("datum.n == which_n").encode(x=x, y=y)
    plain = data("cohorts").transform_filter("datum.n == 1").encode(x=x, y=y)
    tips = [tip("cohort", "cohort"), tip("hours", "hours", ".2f"), tip("loss", "loss", ".3f"), tip("stop", "stop")]
    faint = next(opacity for most, opacity in FAINT.items() if max(numbers) <= most)
    lines = cohorts.mark_line(color=BLUE, strokeWidth=1.5, opacity=faint).encode(detail="cohort:N")
    stopped = "isValid(datum.stop)"
    dots = cohorts.transform_filter(stopped).mark_circle(color=BLUE, opacity=1).encode(size=_size(45, 14), tooltip=tips)
    layers = [lines, dots]
    if 1 in numbers:
        layers += [
            plain.mark_line(color=ORANGE, strokeWidth=2.5, strokeDash=[6, 4]),
            plain.transform_filter(stopped)
            .mark_point(size=110, color=ORANGE, shape="diamond", filled=True, opacity=1)
            .encode(tooltip=tips),
        ]
    chart = alt.layer(*layers).add_params(which)
    said = f"Validation loss over virtual hours, n = {chosen} shown first"
    return finished(chart, f"{title}, n = {chosen}", said)


def timeline(rows: Rows, numbers: Sequence[int], chosen: int, title: str) -> Spec:
    """One bar a cohort: how long it trained, how much of it was waiting for the slowest client, and why it stopped."""
    reasons = sorted({row["stop"] for row in rows})
    return filled(_timeline(tuple(numbers), chosen, title, tuple(reasons)), cohorts=rows)


@lru_cache(KEPT)
def _timeline(numbers: tuple[int, ...], chosen: int, title: str, reasons: tuple[str, ...]) -> Spec:
    parts = ["its average client works", "and waits for the slowest"]
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(domain=[0, 1], reverse=True))
    x = alt.X(
        "from:Q",
        title="virtual hours",
        scale=alt.Scale(nice=False, zero=True),
        axis=alt.Axis(format=PLAIN, tickCount=8),
    )
    tips = [
        tip("cohort", "cohort"),
        tip("hours", "hours", ".2f"),
        tip("rounds", "rounds"),
        tip("stop", "stopped by"),
        tip("waited", "waiting, %", ".0f"),
        tip("slowest", "slowest client"),
        tip("held_up", "of the time it was the slowest, %", ".0f"),
    ]
    base = data("cohorts").transform_filter("datum.n == which_n")
    bars = [
        base.transform_calculate(**{"from": start, "until": end, "part": f"'{part}'"})
        .mark_rect()
        .encode(x=x, x2="until:Q", y=y, y2="bottom:Q", color=colour_of("part", parts, (BLUE, ORANGE)), tooltip=tips)
        for part, start, end in ((parts[0], "0", "datum.busy"), (parts[1], "datum.busy", "datum.hours"))
    ]
    ends = base.transform_calculate(middle="(datum.top + datum.bottom) / 2")
    shapes = ["circle", "cross", "triangle-right", "square", "diamond", "triangle-up"]
    shape = alt.Shape(
        "stop:N",
        title="stop",
        scale=alt.Scale(domain=list(reasons), range=shapes[: len(reasons)]),
        legend=alt.Legend(orient="bottom", columns=2),
    )
    marks = ends.mark_point(filled=True, opacity=1, color=GREY).encode(
        x="hours:Q", y=alt.Y("middle:Q"), shape=shape, size=_size(36, 9), tooltip=tips
    )
    names = (
        ends.transform_filter(f"datum.n <= {NAMED}")
        .transform_calculate(name="'cohort ' + datum.cohort + ', ' + datum.rounds + ' rounds'")
        .mark_text(align="right", dx=-6, fontSize=11)
        .encode(x=alt.datum(0), y=alt.Y("middle:Q"), text="name:N")
    )
    chart = alt.layer(*bars, marks, names).add_params(_which_n(numbers, chosen))
    said = f"One bar for every cohort, earliest stop first, n = {chosen} shown first"
    return finished(chart, f"{title}, n = {chosen}", said, 320)


def finish_times(rows: Rows, numbers: Sequence[int], title: str) -> Spec:
    """The share of cohorts that had stopped by an hour; the last one is marked."""
    return filled(_finish_times(tuple(numbers), title), cohorts=rows)


@lru_cache(KEPT)
def _finish_times(numbers: tuple[int, ...], title: str) -> Spec:
    base = data("cohorts").encode(
        x=alt.X("hours:Q", title="virtual hours", axis=alt.Axis(format=PLAIN, tickCount=8)),
        y=alt.Y("share:Q", title="cohorts that have stopped, %", scale=alt.Scale(domain=[0, 100])),
        color=colour_n(numbers),
    )
    tips = [tip("n", "n"), tip("hours", "hours", ".2f"), tip("share", "stopped, %", ".0f")]
    lines = base.mark_line(interpolate="step-after", strokeWidth=2)
    last = base.transform_filter("datum.last").mark_point(filled=True, size=90, shape="diamond", opacity=1)
    return finished(alt.layer(lines, last.encode(tooltip=tips)), title, "Finish times of the cohorts, cumulated")


def judged(rows: Rows, numbers: Sequence[int], title: str, axis: str) -> Spec:
    """What all cohorts are worth together as CPU hours are spent; a dot where the rule stopped them."""
    return filled(_judged(tuple(numbers), title, axis), judgements=rows)


@lru_cache(KEPT)
def _judged(numbers: tuple[int, ...], title: str, axis: str) -> Spec:
    hours = alt.Axis(format=PLAIN, tickCount=6)
    base = data("judgements").encode(
        x=alt.X("cpu:Q", title="CPU hours, judgements among them", scale=alt.Scale(type="log", nice=False), axis=hours),
        y=alt.Y("worth:Q", title=axis, scale=alt.Scale(zero=False)),
        color=colour_n(numbers),
    )
    tips = [tip("n", "n"), tip("round", "after rounds"), tip("cpu", "CPU hours", ".4~g"), tip("worth", axis, ".4~g")]
    each = base.mark_circle(size=18, opacity=1).encode(tooltip=tips)
    stops = base.transform_filter("datum.stop").mark_point(filled=True, size=90, shape="diamond", opacity=1)
    lines = base.mark_line(strokeWidth=2)
    return finished(alt.layer(lines, each, stops.encode(tooltip=tips)), title, f"{axis}, against CPU hours")


def sizes(rows: Rows, numbers: Sequence[int], title: str) -> Spec:
    """How many samples a cohort holds against how long it trained."""
    return filled(_sizes(tuple(numbers), title), cohorts=rows)


@lru_cache(KEPT)
def _sizes(numbers: tuple[int, ...], title: str) -> Spec:
    tips = [tip("n", "n"), tip("seed", "seed"), tip("samples", "samples", ",.0f"), tip("hours", "hours", ".2f")]
    dots = (
        data("cohorts")
        .mark_circle(size=50, opacity=0.6)
        .encode(
            x=alt.X("samples:Q", title="training samples in the cohort", scale=alt.Scale(zero=False, padding=12)),
            y=alt.Y("hours:Q", title="virtual hours until it stopped", axis=alt.Axis(format=PLAIN, tickCount=8)),
            color=colour_n(numbers),
            tooltip=tips,
        )
    )
    return finished(dots, title, "Samples in a cohort against its hours")


def _size(few: int, many: int) -> Any:
    """Marks that shrink where there are many."""
    return alt.condition(f"datum.n <= {NAMED}", alt.value(few), alt.value(many))


def _which_n(numbers: Sequence[int], chosen: int) -> alt.Parameter:
    """The n that is drawn: chosen on the page, the given one in files."""
    options = alt.binding_select(options=list(numbers), name="n = ")
    return alt.param(name="which_n", value=chosen, bind=options)
