"""The figure of a cohort assignment: each cohort's labels beside those of all clients, and the length of its rounds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from cpfl.errors import SettingError
from cpfl.report import style
from cpfl.runs import files

FORMATS = (*style.CONVERT, "html", "csv")
WHOLE = "all"
NAMED = 20  # cohorts that still have space for their number below the bar
COLOURED = 20  # classes that still get a colour and a name each
TINT = 0.5  # of the palette when it is used a second time
View = Mapping[str, Any]


def picture(views: Sequence[View], title: str, classes: Sequence[str]) -> style.Spec:
    """The specification, with a pair of charts for every n."""
    charts: list[Any] = []
    rows: dict[str, list[dict[str, Any]]] = {}
    for view in views:
        n, by_cohort = view["cohorts"], view["by_cohort"]
        order = [WHOLE, *(str(row["cohort"]) for row in by_cohort)]
        rows[f"labels-{n}"] = [
            {"cohort": name, "class": label, "index": i, "share": 100 * count / max(1, sum(labels)), "count": count}
            for name, labels in zip(order, [view["labels"], *(row["labels"] for row in by_cohort)], strict=True)
            for i, (label, count) in enumerate(zip(classes, labels, strict=True))
            if count
        ]
        shown = [{key: value for key, value in row.items() if key != "labels"} for row in by_cohort]
        rows[f"rounds-{n}"] = [row | {"cohort": str(row["cohort"])} for row in shown]
        heading = (
            f"n = {n}: mean skew {view['skew']:.3f}, a round {view['hours_per_round']:.3g} h on average "
            f"and {view['hours_per_round_longest']:.3g} h at most"
        )
        without_slowest = any(row["slowest_hours"] > 1.001 * row["hours_per_round"] for row in by_cohort)
        charts += [_labels(f"labels-{n}", order, classes, heading), _rounds(f"rounds-{n}", order, without_slowest)]
    description = "; ".join(f"n = {v['cohorts']}: mean label skew {v['skew']:.3f}" for v in views)
    chart = alt.vconcat(*charts, spacing=12).resolve_scale(color="shared")
    spec: style.Spec = chart.properties(title=title, description=description).to_dict(validate=False)
    return style.filled(spec | {"config": style.CONFIG}, **rows)


def save(spec: style.Spec, path: Path) -> Path:
    """Write it in the format of its file name: a figure, or a page that opens offline."""
    if path.suffix != ".html":
        return style.save(spec, path)
    files.write_atomic(path, vl_convert.vegalite_to_html(spec, bundle=True).encode())
    return path


def check_name(path: Path) -> None:
    """Refuse other formats before any work is done."""
    if path.suffix[1:] not in FORMATS:
        raise SettingError(f"{path} is not allowed: a name that ends in {', '.join(FORMATS)} is needed")


def _labels(name: str, order: Sequence[str], classes: Sequence[str], heading: str) -> Any:
    share = ("of its samples, %", ".1f")
    tips = style.tips(cohort="", **{"class": ""}, count=("samples", ",.0f"), share=share)
    chart = style.data(name).mark_bar(stroke="white", strokeWidth=min(0.8, 20 / len(order)))
    return chart.encode(
        x=_cohorts(order, title=None, labels=False),
        y=alt.Y("share:Q", title="labels, %", scale=alt.Scale(domain=[0, 100]), stack="zero"),
        color=_colour(classes),
        order=alt.Order("index:Q"),
        tooltip=tips,
    ).properties(width=style.WIDTH, height=220, title=alt.Title(heading, fontSize=12, fontWeight="normal"))


def _rounds(name: str, order: Sequence[str], without_slowest: bool) -> Any:
    """Hours of a round; with a line for the slowest client, where some rounds run without it."""
    tips = style.tips(
        cohort="",
        clients=",.0f",
        hours_per_round=("expected hours a round", ".3g"),
        slowest=("slowest client", ""),
        slowest_hours=("hours with that one", ".3g"),
    )
    y = alt.Y("hours_per_round:Q", title="hours a round", axis=alt.Axis(format=style.PLAIN, tickCount=4))
    base = style.data(name).encode(x=_cohorts(order, title="cohort", labels=True), y=y, tooltip=tips)
    bars, size = base.mark_bar(color=style.BLUE), {"width": style.WIDTH, "height": 90}
    if not without_slowest:
        return bars.properties(**size)
    ticks = base.mark_tick(color=style.ORANGE, thickness=2).encode(y=alt.Y("slowest_hours:Q"))
    heading = "expected; the line: when its slowest client takes part"
    return alt.layer(bars, ticks).properties(title=alt.Title(heading, fontSize=12, fontWeight="normal"), **size)


def _cohorts(order: Sequence[str], title: str | None, labels: bool) -> alt.X:
    step = math.ceil(len(order) / NAMED)
    named = [order[0], *order[1:][step if step > 1 else 0 :: step]]
    axis = alt.Axis(labelAngle=0, values=named, grid=False, labels=labels, ticks=labels)
    return alt.X("cohort:N", title=title, sort=list(order), scale=alt.Scale(domain=list(order)), axis=axis)


def _colour(classes: Sequence[str]) -> alt.Color:
    if len(classes) > COLOURED:  # a legend of so many names would say less than a scale
        scale = alt.Scale(scheme="viridis", domain=[0, len(classes) - 1])
        return alt.Color("index:Q", title="class, by number", scale=scale)
    colours = [*style.PALETTE, *map(_tinted, style.PALETTE)]
    chosen = [colours[i % len(colours)] for i in range(len(classes))]
    legend = alt.Legend(columns=10 if max(map(len, classes)) <= 3 else 5, symbolType="square")
    return alt.Color("class:N", title="class", scale=alt.Scale(domain=list(classes), range=chosen), legend=legend)


def _tinted(colour: str) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * TINT):02X}" for part in parts)
