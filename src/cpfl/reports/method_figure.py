"""The method drawn from a run's own cohorts: clients, cohorts, ensemble, student; lines as wide as their samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpfl.reports import style
from cpfl.reports.cohort_figures import short
from cpfl.reports.reading import RunFacts
from cpfl.reports.style import Rows, Spec, field, mark, only

COLUMNS = ("clients", "cohorts", "ensemble", "student")
MOST = 200  # clients that get a line each
NAMED = 16  # cohorts that have space for a name


def link_rows(runs: Iterable[RunFacts]) -> Rows:
    """Lines from clients to cohorts and on to the student, for one seed of every n."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        cohorts = run.about["cohorts"]
        clients = sum(map(len, cohorts))
        drawn = max(1, -(-clients // MOST))  # clients of one line
        place = 0
        for i, (members, cohort) in enumerate(zip(cohorts, run.cohorts, strict=False)):
            total = cohort.samples or len(members)
            middle, common = (place + len(members) / 2) / clients, {"n": run.n, "cohort": i}
            for first in range(0, len(members), drawn):
                some = members[first : first + drawn]
                own = total * len(some) / len(members)
                height = (place + first + len(some) / 2) / clients
                names = {"from": f"client {', '.join(map(str, some[:8]))}", "to": f"cohort {i}"}
                rows.append({**common, **names, **_line(0, height, middle, own)})
            place += len(members)
            own_name = f"cohort {i}, {len(members)} clients"
            whole = {"from": own_name, "to": "ensemble", "named": run.n <= NAMED}
            rows.append({**common, **whole, **_line(1, middle, 0.5, total)})
        everything = sum(cohort.samples or 0 for cohort in run.cohorts) or clients
        rows.append({"n": run.n, "cohort": -1, "from": "ensemble", "to": "student", **_line(2, 0.5, 0.5, everything)})
    return rows


def method(rows: Rows, numbers: Sequence[int], picks: Mapping[str, Any]) -> Spec:
    """The figure for one n; the page's selector chooses another."""
    _, tooltip = style.channels("method")
    shown = only("datum.n == which_n")
    ticks = {"labelExpr": f"{list(COLUMNS)}[datum.value]", "values": [0, 1, 2, 3], "orient": "top", "grid": False}
    axis = {**ticks, "ticks": False, "domain": False, "labelFontSize": 13, "title": None}
    x = field("x:Q", scale={"domain": [-0.15, 3.2], "nice": False}, axis=axis)
    y = field("y:Q", scale={"domain": [0, 1], "reverse": True}, axis=None)
    width = field("samples:Q", scale={"type": "linear", "zero": True, "range": [0.5, 26]}, legend=None)
    line = {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}, "strokeWidth": width}
    colour = {"color": style.colour_n(numbers) | {"legend": None}}
    name = {"x": field("x:Q"), "y": field("y:Q"), "text": field("from:N")}
    end = {"x": {"datum": 3}, "y": {"datum": 0.5}, "text": {"value": "one model for all"}}
    layers = [
        mark("rule", line | colour | tooltip, shown, opacity=1, strokeCap="butt"),
        *(
            mark("text", name, shown, only(f"datum.named && datum.y {side}"), align="left", dx=8, dy=dy, fontSize=11)
            for side, dy in (("<= 0.5", -14), ("> 0.5", 14))  # the lines run towards the middle
        ),
        mark("text", end, shown, only("datum.x == 2"), align="center", dy=26, fontSize=11),
    ]
    picked = {"n": picks["n"]}
    return style.chart(f"The method with n = {picks['n']}", *layers, height=320, picks=picked, links=rows)


def _line(column: int, start: float, end: float, samples: float) -> dict[str, Any]:
    return {"x": column, "x2": column + 1, "y": short(start), "y2": short(end), "samples": round(samples)}
