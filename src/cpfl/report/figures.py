"""Pictures over finished runs, read from their folders only; each is defined once, for every format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import altair as alt

from cpfl.errors import SettingError
from cpfl.report.tables import by_cohorts

FORMATS = ("png", "svg", "pdf", "html")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito: safe for colour-blind readers


def trade_off(summaries: Iterable[Mapping[str, Any]], title: str) -> alt.LayerChart:
    """Accuracy against virtual hours, a point for every n, CPU hours as its size."""
    rows = by_cohorts(summaries)
    kinds = (("student", "student_accuracy"), ("teachers, mean", "teacher_accuracy_mean"))
    points = [
        {
            "n": f"n = {row['cohorts']}",
            "hours": row["hours"],
            "CPU hours": row["cpu_hours"],
            "model": kind,
            "accuracy": row[key],
        }
        for row in rows
        for kind, key in kinds
        if kind == "student" or row["cohorts"] > 1  # a single cohort's model is the result, nobody's teacher
    ]
    base = alt.Chart(alt.InlineData(values=points)).encode(
        x=alt.X("hours:Q", title="virtual hours to convergence", scale=alt.Scale(zero=False, padding=30)),
        y=alt.Y("accuracy:Q", title="test accuracy, %", scale=alt.Scale(zero=False, padding=25)),
        color=alt.Color(
            "model:N", title=None, scale=alt.Scale(domain=[kind for kind, _ in kinds], range=[BLUE, ORANGE])
        ),
    )
    dots = base.mark_circle(opacity=0.85).encode(
        size=alt.Size("CPU hours:Q", scale=alt.Scale(range=[60, 600]), title="CPU hours")
    )
    paths = base.mark_line(opacity=0.35, strokeWidth=1.5)
    names = base.mark_text(dy=-17, fontSize=12, color=GREY).encode(text="n:N", color=alt.value(GREY))
    chart: alt.LayerChart = (paths + dots + names).properties(width=520, height=320, title=title)
    return chart


def save(chart: alt.LayerChart, path: Path) -> Path:
    """Write a picture in the format that its name asks for."""
    if path.suffix[1:] not in FORMATS:
        raise SettingError(f"pictures are written as {', '.join(FORMATS)}, not {path.suffix or 'without a suffix'}")
    chart.save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    return path
