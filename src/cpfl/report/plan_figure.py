"""The picture of a plan: every cohort's labels beside the whole's, and how long its rounds take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from cpfl.errors import SettingError
from cpfl.report import style
from cpfl.report.drawing import CONVERT
from cpfl.runs import files

FORMATS = (*CONVERT, "html")
WHOLE = "all"
NAMED = 20  # cohorts that still have room for their number below the bar
TOLD_APART = 20  # classes that still get a colour and a name each
TINT = 0.5  # of the palette's second turn
View = Mapping[str, Any]


def picture(views: Sequence[View], title: str, classes: Sequence[str]) -> dict[str, Any]:
    """The specification, with a pair of charts for every n."""
    charts: list[Any] = []
    rows = dict[str, list[dict[str, Any]]]()
    for view in views:
        n = view["cohorts"]
        order = [WHOLE, *(str(row["cohort"]) for row in view["by_cohort"])]
        rows[f"labels-{n}"] = [
            {"cohort": name, "class": label, "place": place, "share": 100 * count / max(1, sum(labels)), "count": count}
            for name, labels in zip(order, [view["labels"], *(row["labels"] for row in view["by_cohort"])], strict=True)
            for place, (label, count) in enumerate(zip(classes, labels, strict=True))
            if count
        ]
        rows[f"rounds-{n}"] = [row | {"cohort": str(row["cohort"])} for row in map(_plain, view["by_cohort"])]
        heading = (
            f"n = {n}: mean skew {view['skew']:.3f}, a round {view['hours_per_round']:.3g} h on average "
            f"and {view['hours_per_round_longest']:.3g} h at most"
        )
        charts += [_labels(f"labels-{n}", order, classes, heading), _rounds(f"rounds-{n}", order, _waits(view))]
    said = "; ".join(f"n = {v['cohorts']}: mean label skew {v['skew']:.3f}" for v in views)
    chart = alt.vconcat(*charts, spacing=12).resolve_scale(color="shared")
    spec: dict[str, Any] = chart.properties(title=title, description=said).to_dict(validate=False)
    return style.filled(spec | {"config": style.CONFIG}, **rows)


def save(spec: dict[str, Any], path: Path) -> Path:
    """Write it as the name asks for: a picture, or a page that opens offline."""
    if path.suffix == ".html":
        files.write_atomic(path, vl_convert.vegalite_to_html(spec, bundle=True).encode())
        return path
    return style.save(spec, path)


def check_name(path: Path) -> None:
    """Refuse other formats before any work is done."""
    if path.suffix[1:] not in (*FORMATS, "csv"):
        known = ", ".join((*FORMATS, "csv"))
        raise SettingError(f"--out {path} is not allowed: a name that ends in {known} is needed")


def _labels(name: str, order: Sequence[str], classes: Sequence[str], heading: str) -> Any:
    tips = [style.tip("cohort", "cohort"), style.tip("class", "class"), style.tip("count", "samples", ",.0f")]
    chart = style.data(name).mark_bar(stroke="white", strokeWidth=min(0.8, 20 / len(order)))
    return chart.encode(
        x=_cohorts(order, title=None, labels=False),
        y=alt.Y("share:Q", title="labels, %", scale=alt.Scale(domain=[0, 100]), stack="zero"),
        color=_colour(classes),
        order=alt.Order("place:Q"),
        tooltip=[*tips, style.tip("share", "of its samples, %", ".1f")],
    ).properties(width=style.WIDTH, height=220, title=alt.Title(heading, fontSize=12, fontWeight="normal"))


def _rounds(name: str, order: Sequence[str], waits: bool) -> Any:
    tips = [
        style.tip("cohort", "cohort"),
        style.tip("clients", "clients", ",.0f"),
        style.tip("hours_per_round", "expected hours a round", ".3g"),
        style.tip("slowest", "slowest client"),
        style.tip("slowest_hours", "hours with that one", ".3g"),
    ]
    y = alt.Y("hours_per_round:Q", title="hours a round", axis=alt.Axis(format=style.PLAIN, tickCount=4))
    base = style.data(name).encode(x=_cohorts(order, title="cohort", labels=True), y=y, tooltip=tips)
    layers = [base.mark_bar(color=style.BLUE)]
    size = {"width": style.WIDTH, "height": 90}
    if not waits:
        return layers[0].properties(**size)
    layers.append(base.mark_tick(color=style.ORANGE, thickness=2).encode(y=alt.Y("slowest_hours:Q")))
    heading = "expected; the line: when its slowest client takes part"
    return alt.layer(*layers).properties(title=alt.Title(heading, fontSize=12, fontWeight="normal"), **size)


def _cohorts(order: Sequence[str], title: str | None, labels: bool) -> alt.X:
    step = math.ceil(len(order) / NAMED)
    named = [order[0], *order[1:][step if step > 1 else 0 :: step]]
    axis = alt.Axis(labelAngle=0, values=named, grid=False, labels=labels, ticks=labels)
    return alt.X("cohort:N", title=title, sort=list(order), scale=alt.Scale(domain=list(order)), axis=axis)


def _colour(classes: Sequence[str]) -> alt.Color:
    if len(classes) > TOLD_APART:  # a legend of so many names would say less than a scale
        scale = alt.Scale(scheme="viridis", domain=[0, len(classes) - 1])
        return alt.Color("place:Q", title="class, by number", scale=scale)
    turns = [style.PALETTE, tuple(_tinted(colour) for colour in style.PALETTE)]
    colours = [turns[i // len(style.PALETTE) % 2][i % len(style.PALETTE)] for i in range(len(classes))]
    legend = alt.Legend(columns=10 if max(map(len, classes)) <= 3 else 5, symbolType="square")
    return alt.Color("class:N", title="class", scale=alt.Scale(domain=list(classes), range=colours), legend=legend)


def _tinted(colour: str) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * TINT):02X}" for part in parts)


def _waits(view: View) -> bool:
    """Whether some rounds go without the cohort's slowest client."""
    return any(row["slowest_hours"] > 1.001 * row["hours_per_round"] for row in view["by_cohort"])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "labels"}
