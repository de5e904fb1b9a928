"""Pictures over finished runs, read from their folders only; each is defined once, for every format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import altair as alt

from cpfl.errors import SettingError
from cpfl.report.tables import by_cohorts

FORMATS = ("png", "svg", "pdf", "html")
BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito: safe for colour-blind readers


def trade_off(summaries: Iterable[Mapping[str, Any]], title: str) -> alt.LayerChart:
    """Accuracy against virtual hours, a point for every n, with the spread over seeds."""
    rows = by_cohorts(summaries)
    kinds = (("student", "student_accuracy"), ("teachers, mean", "teacher_accuracy_mean"))
    points = [
        {
            "n": str(row["cohorts"]),
            "model": kind,
            **{name: row[name_of] + sign * row[f"{name_of}_spread"] for name, name_of, sign in _ends(key)},
        }
        for row in rows
        for kind, key in kinds
        if kind == "student" or row["cohorts"] > 1  # a single cohort's model is the result, nobody's teacher
    ]
    colours = alt.Scale(domain=[kind for kind, _ in kinds], range=[BLUE, ORANGE])
    hours, accuracy = (alt.Scale(zero=False, padding=30) for _ in range(2))
    base = alt.Chart(alt.InlineData(values=points)).encode(
        x=alt.X(
            "hours:Q",
            title="virtual hours to convergence (the numbers in the dots are n)",
            scale=hours,
            axis=alt.Axis(format="~g"),
        ),
        y=alt.Y("accuracy:Q", title="test accuracy, %", scale=accuracy),
        color=alt.Color("model:N", title=None, scale=colours),
    )
    spread = [
        base.mark_rule(opacity=0.5).encode(x=alt.X("hours_low:Q"), x2="hours_high:Q"),
        base.mark_rule(opacity=0.5).encode(y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q"),
    ]
    paths = base.mark_line(opacity=0.35, strokeWidth=1.5)
    dots = base.mark_circle(size=380, opacity=1)
    names = base.mark_text(fontSize=11, fontWeight="bold").encode(text="n:N", color=alt.value("white"))
    chart = alt.layer(paths, *spread, dots, names).properties(width=560, height=340, title=title)
    assert isinstance(chart, alt.LayerChart)
    return chart


def _ends(key: str) -> list[tuple[str, str, int]]:
    """The point and the ends of its whiskers: one standard deviation over seeds each way."""
    ends = (("", 0), ("_low", -1), ("_high", 1))
    return [(f"{axis}{end}", of, sign) for axis, of in (("hours", "hours"), ("accuracy", key)) for end, sign in ends]


def save(chart: alt.LayerChart, path: Path) -> Path:
    """Write a picture in the format that its name asks for."""
    if path.suffix[1:] not in FORMATS:
        raise SettingError(f"pictures are written as {', '.join(FORMATS)}, not {path.suffix or 'without a suffix'}")
    chart.save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    return path
