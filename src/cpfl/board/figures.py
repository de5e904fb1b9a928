"""Pictures of runs under way: the cohorts of one, and several side by side."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import altair as alt

from cpfl.report.points import FEWEST, POINTS, Rows, short, thinned
from cpfl.report.style import BLUE, KEPT, PLAIN, colour_of, data, filled, finished, tip
from cpfl.report.trail import Trail

Spec = dict[str, Any]
Trails = Mapping[str, Sequence[Trail]]  # of runs, by name
STEPS = 120  # moments at which runs are compared
FAINT = {8: 0.9, 32: 0.5, 10**9: 0.25}  # so many curves: how opaque each


def curves(runs: Trails, title: str) -> Spec:
    """Every cohort's validation loss with its stop, for the run that is chosen."""
    rows: Rows = []
    each = max(FEWEST, POINTS // max(1, sum(map(len, runs.values()))))
    for run, trails in runs.items():
        for cohort, trail in enumerate(trails):
            points: Rows = [{"hours": short(hours), "loss": short(loss)} for hours, loss in thinned(trail.curve, each)]
            if points and trail.stop:
                points[-1] |= {"stop": trail.stop, "rounds": trail.rounds}
            rows += [{"run": run, "cohort": cohort, **point} for point in points]
    many = max(map(len, runs.values()))
    return filled(_curves(tuple(runs), many, title), cohorts=rows)


@lru_cache(KEPT)
def _curves(runs: tuple[str, ...], cohorts: int, title: str) -> Spec:
    base = data("cohorts").encode(x=_hours(), y=_loss("validation loss, moving average"))
    if len(runs) > 1:
        base = base.transform_filter("datum.run == which_run")
    faint = next(opacity for most, opacity in FAINT.items() if cohorts <= most)
    tips = [tip("cohort", "cohort"), tip("hours", "hours", ".2f"), tip("loss", "loss", ".3f")]
    stops = [*tips, tip("stop", "stopped by"), tip("rounds", "rounds")]
    lines = base.mark_line(color=BLUE, strokeWidth=1.5, opacity=faint).encode(detail="cohort:N")
    dots = base.transform_filter("isValid(datum.stop)").mark_circle(color=BLUE, opacity=1, size=45)
    chart: Any = alt.layer(lines, dots.encode(tooltip=stops))
    if len(runs) > 1:
        menu = alt.binding_select(options=list(runs), name="run = ")
        chart = chart.add_params(alt.param(name="which_run", value=runs[0], bind=menu))
    return finished(chart, title, "Validation loss of every cohort over virtual hours, with stops")


def side_by_side(runs: Trails, title: str) -> Spec:
    """The mean over cohorts of the validation loss, one line a run; a cohort that has stopped keeps its last value."""
    rows: Rows = []
    for run, trails in runs.items():
        told = [trail.curve for trail in trails if trail.curve]
        if len(told) < len(trails):  # a mean over some of the cohorts would jump
            continue
        first, last = max(curve[0][0] for curve in told), max(curve[-1][0] for curve in told)
        steps = STEPS if last > first else 0
        for moment in (first + (last - first) * i / max(1, steps) for i in range(steps + 1)):
            mean = sum(curve[bisect_right(curve, (moment, float("inf"))) - 1][1] for curve in told) / len(told)
            rows.append({"run": run, "hours": short(moment), "loss": short(mean)})
    return filled(_side_by_side(tuple(runs), title), runs=rows)


@lru_cache(KEPT)
def _side_by_side(runs: tuple[str, ...], title: str) -> Spec:
    tips = [tip("run", "run"), tip("hours", "hours", ".2f"), tip("loss", "mean loss", ".3f")]
    base = data("runs").encode(x=_hours(), y=_loss("mean validation loss"), color=colour_of("run", runs))
    lines = base.mark_line(strokeWidth=2)
    points = base.mark_circle(size=60, opacity=0).encode(tooltip=tips)  # something to point at
    return finished(alt.layer(lines, points), title, f"Mean validation loss over virtual hours: {', '.join(runs)}")


def _hours() -> alt.X:
    return alt.X("hours:Q", title="virtual hours", axis=alt.Axis(format=PLAIN, tickCount=8))


def _loss(title: str) -> alt.Y:
    return alt.Y("loss:Q", title=title, scale=alt.Scale(zero=False))
