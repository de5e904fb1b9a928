"""Figures of the cohorts: loss curves and stops, timeline, evaluations, finish times, sizes, runs side by side."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from cpfl.report import style

NAMED = 24  # bars that still have space for a name each
FAINT = {8: 0.9, 32: 0.5, 10**9: 0.25}  # so many curves: how opaque each
Numbers = tuple[int, ...]


@style.over("cohorts")
def losses(numbers: Numbers, chosen: int, title: str) -> style.Spec:
    """Validation loss of every cohort with its stop, beside the run that was not partitioned."""
    description = f"Validation loss over virtual hours, n = {chosen} shown first"
    chart = _losses("n", numbers, chosen, max(numbers)).add_params(_menu("n", numbers, chosen))
    return style.finished(chart, f"{title}, n = {chosen}", description)


@style.over("cohorts")
def live_losses(runs: tuple[str, ...], cohorts: int, title: str) -> style.Spec:
    """Validation loss of every cohort with its stop, for one of the runs at a time."""
    chart = _losses("run", runs, runs[0], cohorts)
    if len(runs) > 1:
        chart = chart.add_params(_menu("run", runs, runs[0]))
    return style.finished(chart, title, "Validation loss of every cohort over virtual hours, with stops")


def _losses(field: str, options: Sequence[Any], chosen: Any, cohorts: int) -> Any:
    base = style.data("cohorts").encode(x=style.hours_axis(), y=style.loss_axis("validation loss, moving average"))
    curves = base.transform_filter(f"datum.{field} == which_{field}") if field == "n" or len(options) > 1 else base
    tips = style.tips(cohort="", hours=".2f", loss=".3f", stop=("stopped by", ""))
    faint = next(opacity for most, opacity in FAINT.items() if cohorts <= most)
    stopped = "isValid(datum.stop)"
    dots = curves.transform_filter(stopped).mark_circle(color=style.BLUE, opacity=1, size=45)
    layers = [curves.mark_line(color=style.BLUE, strokeWidth=1.5, opacity=faint).encode(detail="cohort:N")]
    if field == "run":
        return alt.layer(*layers, dots.encode(tooltip=[*tips, *style.tips(rounds="")]))
    layers.append(dots.encode(size=_size(45, 14), tooltip=tips))
    if 1 in options:
        plain = base.transform_filter("datum.n == 1")
        end = plain.transform_filter(stopped).mark_point(
            size=110, color=style.ORANGE, shape="diamond", filled=True, opacity=1
        )
        layers += [plain.mark_line(color=style.ORANGE, strokeWidth=2.5, strokeDash=[6, 4]), end.encode(tooltip=tips)]
    return alt.layer(*layers)


@style.over("runs")
def side_by_side(runs: tuple[str, ...], title: str) -> style.Spec:
    """The mean validation loss over the cohorts, one line for every run."""
    tips = style.tips(run="", hours=".2f", loss=("mean loss", ".3f"))
    base = style.data("runs").encode(
        x=style.hours_axis(), y=style.loss_axis("mean validation loss"), color=style.colour_of("run", runs)
    )
    targets = base.mark_circle(size=60, opacity=0).encode(tooltip=tips)  # invisible: they carry the tooltip
    chart = alt.layer(base.mark_line(strokeWidth=2), targets)
    return style.finished(chart, title, f"Mean validation loss over virtual hours: {', '.join(runs)}")


@style.over("cohorts")
def timeline(numbers: Numbers, chosen: int, title: str, reasons: tuple[str, ...]) -> style.Spec:
    """One bar for every cohort: how long it trained, how long it waited for the slowest client, why it stopped."""
    parts = ["its average client works", "and waits for the slowest"]
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(domain=[0, 1], reverse=True))
    axis = alt.Axis(format=style.PLAIN, tickCount=8)
    x = alt.X("from:Q", title="virtual hours", scale=alt.Scale(nice=False, zero=True), axis=axis)
    tips = style.tips(
        cohort="",
        hours=".2f",
        rounds="",
        stop=("stopped by", ""),
        waited=("waiting, %", ".0f"),
        slowest=("slowest client", ""),
        held_up=("of the time it was the slowest, %", ".0f"),
    )
    base = style.data("cohorts").transform_filter("datum.n == which_n")
    bars = [
        base.transform_calculate(**{"from": start, "until": end, "part": f"'{part}'"})
        .mark_rect()
        .encode(
            x=x,
            x2="until:Q",
            y=y,
            y2="bottom:Q",
            color=style.colour_of("part", parts, (style.BLUE, style.ORANGE)),
            tooltip=tips,
        )
        for part, start, end in ((parts[0], "0", "datum.busy"), (parts[1], "datum.busy", "datum.hours"))
    ]
    ends = base.transform_calculate(middle="(datum.top + datum.bottom) / 2")
    shapes = ["circle", "cross", "triangle-right", "square", "diamond", "triangle-up"]
    scale = alt.Scale(domain=list(reasons), range=shapes[: len(reasons)])
    shape = alt.Shape("stop:N", title="stop", scale=scale, legend=alt.Legend(orient="bottom", columns=2))
    marks = ends.mark_point(filled=True, opacity=1, color=style.GREY).encode(
        x="hours:Q", y=alt.Y("middle:Q"), shape=shape, size=_size(36, 9), tooltip=tips
    )
    names = (
        ends.transform_filter(f"datum.n <= {NAMED}")
        .transform_calculate(name="'cohort ' + datum.cohort + ', ' + datum.rounds + ' rounds'")
        .mark_text(align="right", dx=-6, fontSize=11)
        .encode(x=alt.datum(0), y=alt.Y("middle:Q"), text="name:N")
    )
    chart = alt.layer(*bars, marks, names).add_params(_menu("n", numbers, chosen))
    description = f"One bar for every cohort, earliest stop first, n = {chosen} shown first"
    return style.finished(chart, f"{title}, n = {chosen}", description, 320)


@style.over("cohorts")
def finish_times(numbers: Numbers, title: str) -> style.Spec:
    """The share of cohorts that had stopped by an hour; the last one is marked."""
    share = alt.Y("share:Q", title="cohorts that have stopped, %", scale=alt.Scale(domain=[0, 100]))
    base = style.data("cohorts").encode(x=style.hours_axis(), y=share, color=style.colour_n(numbers))
    tips = style.tips(n="", hours=".2f", share=("stopped, %", ".0f"))
    lines = base.mark_line(interpolate="step-after", strokeWidth=2)
    last = base.transform_filter("datum.last").mark_point(filled=True, size=90, shape="diamond", opacity=1)
    return style.finished(alt.layer(lines, last.encode(tooltip=tips)), title, "Finish times of the cohorts, cumulated")


@style.over("evaluations")
def evaluations(numbers: Numbers, title: str, axis: str) -> style.Spec:
    """Accuracy of the ensemble of all cohort models against CPU hours; a diamond where the rule stopped training."""
    scale, ticks = alt.Scale(type="log", nice=False), alt.Axis(format=style.PLAIN, tickCount=6)
    base = style.data("evaluations").encode(
        x=alt.X("cpu:Q", title="CPU hours, evaluations included", scale=scale, axis=ticks),
        y=alt.Y("accuracy:Q", title=axis, scale=alt.Scale(zero=False)),
        color=style.colour_n(numbers),
    )
    tips = style.tips(n="", round=("after rounds", ""), cpu=("CPU hours", ".4~g"), accuracy=(axis, ".4~g"))
    each = base.mark_circle(size=18, opacity=1).encode(tooltip=tips)
    stops = base.transform_filter("datum.stop").mark_point(filled=True, size=90, shape="diamond", opacity=1)
    lines = base.mark_line(strokeWidth=2)
    return style.finished(alt.layer(lines, each, stops.encode(tooltip=tips)), title, f"{axis}, against CPU hours")


@style.over("cohorts")
def sizes(numbers: Numbers, title: str) -> style.Spec:
    """The samples of a cohort against its training time."""
    dots = style.data("cohorts").mark_circle(size=50, opacity=0.6)
    chart = dots.encode(
        x=alt.X("samples:Q", title="training samples in the cohort", scale=alt.Scale(zero=False, padding=12)),
        y=alt.Y("hours:Q", title="virtual hours until it stopped", axis=alt.Axis(format=style.PLAIN, tickCount=8)),
        color=style.colour_n(numbers),
        tooltip=style.tips(n="", seed="", samples=",.0f", hours=".2f"),
    )
    return style.finished(chart, title, "Samples in a cohort against its hours")


def _size(few: int, many: int) -> Any:
    """Marks that shrink where there are many."""
    return alt.condition(f"datum.n <= {NAMED}", alt.value(few), alt.value(many))


def _menu(field: str, options: Sequence[Any], chosen: Any) -> alt.Parameter:
    """A menu on the page for the n or the run that is drawn; files show the chosen one."""
    menu = alt.binding_select(options=list(options), name=f"{field} = ")
    return alt.param(name=f"which_{field}", value=chosen, bind=menu)
