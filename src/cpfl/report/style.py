"""How every picture looks: palette, sizes, the parts that charts share, and the formats they are written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from cpfl.errors import SettingError
from cpfl.report.drawing import CONVERT, svg
from cpfl.runs import files

# Okabe and Ito's colours, safe for colour-blind readers; grey for their black, which a dark page would swallow.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#B8AE1E")
BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[6]
WIDTH, HEIGHT = 560, 300
PLAIN = ",.6~g"  # figures on an axis: no powers of ten, no needless zeros
KEPT = 64  # specifications of one kind of picture that are kept to be filled again
Chart = alt.Chart | alt.LayerChart | alt.FacetChart  # the last only because alt.layer says so
CONFIG: dict[str, Any] = {
    "axis": {"gridOpacity": 0.5, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12},
    "legend": {"orient": "top", "titleFontWeight": "normal", "labelFontSize": 11, "titleOrient": "left", "columns": 4},
    "title": {"anchor": "start", "fontSize": 14},
    "view": {"stroke": None},
}


def data(name: str) -> alt.Chart:
    """A chart over rows that `filled` is given by this name: Altair would copy and check each of them many times."""
    return alt.Chart(alt.NamedData(name=name))


def log_n(numbers: Sequence[int]) -> alt.X:
    """n on a logarithmic axis, with a tick for every n there is."""
    return alt.X(
        "n:Q",
        title="n, the number of cohorts",
        scale=alt.Scale(type="log", base=2, nice=False, padding=16),
        axis=alt.Axis(values=list(numbers), format="d", grid=False, labelOverlap=True),
    )


def colour_n(numbers: Sequence[int], title: str = "n") -> alt.Color:
    """One colour an n, the same in every picture of an experiment."""
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(numbers))]
    return alt.Color("n:O", title=title, scale=alt.Scale(domain=list(numbers), range=colours))


def colour_of(field: str, values: Sequence[str], colours: Sequence[str] = PALETTE) -> alt.Color:
    """One colour a name."""
    chosen = [colours[i % len(colours)] for i in range(len(values))]
    legend = alt.Legend(columns=1, labelLimit=300)  # names are long: one a line, so that a telephone shows them
    return alt.Color(f"{field}:N", title=None, scale=alt.Scale(domain=list(values), range=chosen), legend=legend)


def tip(field: str, title: str, form: str = "") -> alt.Tooltip:
    """A field that shows when a mark is pointed at."""
    return alt.Tooltip(f"{field}:Q", title=title, format=form) if form else alt.Tooltip(f"{field}:N", title=title)


def finished(chart: Chart, title: str, description: str, height: int = HEIGHT) -> dict[str, Any]:
    """The chart as a specification, for the page and for files alike, with all but its rows."""
    whole = chart.properties(width=WIDTH, height=height, title=title, description=description)
    spec: dict[str, Any] = whole.to_dict(validate=False)  # half of the time otherwise; the tests draw every figure
    return spec | {"config": CONFIG}


def filled(spec: dict[str, Any], **rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The specification with its rows. Without them it is worth keeping: Altair takes 30 ms and more to make one."""
    return spec | {"datasets": {name: list(values) for name, values in rows.items()}}


def save(spec: dict[str, Any], path: Path) -> Path:
    """Write a picture in the format that its name asks for."""
    if path.suffix[1:] not in CONVERT:
        raise SettingError(f"pictures are written as {', '.join(CONVERT)}, not {path.suffix or 'without a suffix'}")
    files.write_atomic(path, CONVERT[path.suffix[1:]](svg(spec)))
    return path
