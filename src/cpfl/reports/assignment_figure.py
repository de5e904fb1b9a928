"""The figure of a cohort assignment: each cohort's labels beside those of all clients, and the length of its rounds."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpfl.errors import SettingError
from cpfl.reports import style
from cpfl.reports.style import PALETTE, Row, Spec, field, mark

FORMATS = (*style.CONVERT, "html", "csv")
WHOLE = "all"
HEADING: Spec = {"fontSize": 12, "fontWeight": "normal"}
NAMED = 20  # cohorts that still have space for their number below the bar
COLOURED = 20  # classes that still get a colour and a name each
TINTS = ("#94BCDB", "#E3AC85", "#88BFB1", "#D7A8CD", "#C4B496", "#AEB5E7", "#8FC3C9", "#BEBF89")  # PALETTE, half white


def picture(views: Sequence[Row], title: str, classes: Sequence[str]) -> Spec:
    """The specification, with a pair of charts for every n."""
    charts: list[Spec] = []
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
    whole = {"title": title, "description": description, "vconcat": charts, "spacing": 12}
    return style.SHARED | whole | {"resolve": {"scale": {"color": "shared"}}} | style.datasets(**rows)


def check_name(path: Path) -> None:
    """Refuse other formats before any work is done."""
    if path.suffix[1:] not in FORMATS:
        raise SettingError(f"{path} is not allowed: a name that ends in {', '.join(FORMATS)} is needed")


def _labels(name: str, order: Sequence[str], classes: Sequence[str], heading: str) -> Spec:
    axes, tooltip = style.channels("assignment-labels")
    look = {"x": _cohorts(order, title=None, labels=False), "color": _colour(classes), "order": field("index:Q")}
    bars = mark("bar", axes | tooltip | look, data=name, stroke="white", strokeWidth=min(0.8, 20 / len(order)))
    return bars | {"width": style.WIDTH, "height": 220, "title": HEADING | {"text": heading}}


def _rounds(name: str, order: Sequence[str], without_slowest: bool) -> Spec:
    """Hours of a round; with a line for the slowest client, where some rounds run without it."""
    axes, tooltip = style.channels("assignment-rounds")
    base = axes | tooltip | {"x": _cohorts(order, title="cohort", labels=True)}
    bars = mark("bar", base, data=name, color=PALETTE[0])
    size = {"width": style.WIDTH, "height": 90}
    if not without_slowest:
        return bars | size
    ticks = mark("tick", base | {"y": field("slowest_hours:Q")}, data=name, color=PALETTE[1], thickness=2)
    title = HEADING | {"text": "expected; the line: when its slowest client takes part"}
    return {"layer": [bars, ticks], "title": title, **size}


def _cohorts(order: Sequence[str], title: str | None, labels: bool) -> Spec:
    step = math.ceil(len(order) / NAMED)
    named = [order[0], *order[1:][step if step > 1 else 0 :: step]]
    axis = {"labelAngle": 0, "values": named, "grid": False, "labels": labels, "ticks": labels}
    return field("cohort:N", title=title, sort=list(order), scale={"domain": list(order)}, axis=axis)


def _colour(classes: Sequence[str]) -> Spec:
    if len(classes) > COLOURED:  # a legend of so many names would say less than a scale
        scale = {"scheme": "viridis", "domain": [0, len(classes) - 1]}
        return field("index:Q", title="class, by number", scale=scale)
    legend = {"columns": 10 if max(map(len, classes)) <= 3 else 5, "symbolType": "square"}
    return field("class:N", title="class", scale=style.scale(classes, PALETTE + TINTS), legend=legend)
