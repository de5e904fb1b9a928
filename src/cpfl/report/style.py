"""The look of every figure: palette, sizes, shared parts of charts, and the formats they are written in."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import altair as alt
import vl_convert

from cpfl.errors import SettingError
from cpfl.runs import files

# Okabe and Ito's colours, safe for colour-blind readers; grey instead of black, which is invisible on a dark page.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#B8AE1E")
BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[6]
WIDTH, HEIGHT = 560, 300
PLAIN = ",.6~g"  # numbers on an axis: no powers of ten, no needless zeros
KEPT = 64  # cached specifications of one kind of figure
Chart = alt.Chart | alt.LayerChart | alt.FacetChart  # the last only because alt.layer says so
Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
CONVERT: dict[str, Callable[[str], bytes]] = {
    "svg": str.encode,
    "pdf": vl_convert.svg_to_pdf,
    "png": lambda svg: vl_convert.svg_to_png(svg, scale=2),
}
P = ParamSpec("P")
CONFIG: Spec = {
    "axis": {"gridOpacity": 0.5, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12},
    "legend": {"orient": "top", "titleFontWeight": "normal", "labelFontSize": 11, "titleOrient": "left", "columns": 4},
    "title": {"anchor": "start", "fontSize": 14},
    "view": {"stroke": None},
}


def over(name: str) -> Callable[[Callable[P, Spec]], Callable[Concatenate[Rows, P], Spec]]:
    """Let a figure take its rows as first argument; the rest is cached, since Altair takes 30 ms and more for it."""

    def decorate(make: Callable[P, Spec]) -> Callable[Concatenate[Rows, P], Spec]:
        cached = lru_cache(KEPT)(make)

        def fill(rows: Rows, /, *args: P.args, **kwargs: P.kwargs) -> Spec:
            return filled(cached(*args, **kwargs), **{name: rows})  # type: ignore[arg-type]  # all are hashable

        return fill

    return decorate


def filled(spec: Spec, **rows: Rows) -> Spec:
    """The specification with its rows."""
    return spec | {"datasets": {name: list(values) for name, values in rows.items()}}


def data(name: str) -> alt.Chart:
    """A chart over rows that `filled` adds under this name: Altair would copy and check each of them many times."""
    return alt.Chart(alt.NamedData(name=name))


def hours_axis(title: str = "virtual hours", **scale: Any) -> alt.X:
    """Virtual hours on the horizontal axis."""
    x = alt.X("hours:Q", title=title, axis=alt.Axis(format=PLAIN, tickCount=8))
    return x.scale(**scale) if scale else x


def loss_axis(title: str) -> alt.Y:
    """A loss on the vertical axis."""
    return alt.Y("loss:Q", title=title, scale=alt.Scale(zero=False))


def log_n(numbers: Sequence[int]) -> alt.X:
    """n on a logarithmic axis, with a tick for every n there is."""
    return alt.X(
        "n:Q",
        title="n, the number of cohorts",
        scale=alt.Scale(type="log", base=2, nice=False, padding=16),
        axis=alt.Axis(values=list(numbers), format="d", grid=False, labelOverlap=True),
    )


def colour_n(numbers: Sequence[int]) -> alt.Color:
    """One colour for every n, the same in all figures of an experiment."""
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(numbers))]
    return alt.Color("n:O", title="n", scale=alt.Scale(domain=list(numbers), range=colours))


def colour_of(field: str, values: Sequence[str], colours: Sequence[str] = PALETTE) -> alt.Color:
    """One colour for every name."""
    chosen = [colours[i % len(colours)] for i in range(len(values))]
    legend = alt.Legend(columns=1, labelLimit=300)  # names are long: one a line, so that a telephone shows them
    return alt.Color(f"{field}:N", title=None, scale=alt.Scale(domain=list(values), range=chosen), legend=legend)


def tips(**fields: str | tuple[str, str]) -> list[alt.Tooltip]:
    """The fields of a tooltip: each with its number format, empty for a name, or with a title and its format."""
    known = {field: (field, how) if isinstance(how, str) else how for field, how in fields.items()}
    return [
        alt.Tooltip(f"{field}:Q", title=title, format=form) if form else alt.Tooltip(f"{field}:N", title=title)
        for field, (title, form) in known.items()
    ]


def finished(chart: Chart, title: str, description: str, height: int = HEIGHT) -> Spec:
    """The chart as a specification without rows, for the page and for files alike."""
    whole = chart.properties(width=WIDTH, height=height, title=title, description=description)
    spec: Spec = whole.to_dict(validate=False)  # validation doubles the time; the tests draw every figure
    return spec | {"config": CONFIG}


def save(spec: Spec, path: Path) -> Path:
    """Write a figure in the format of its file name."""
    if path.suffix[1:] not in CONVERT:
        raise SettingError(f"figures are written as {', '.join(CONVERT)}, not {path.suffix or 'without a suffix'}")
    files.write_atomic(path, CONVERT[path.suffix[1:]](vl_convert.vegalite_to_svg(spec)))
    return path


def save_all(specs: Mapping[str, Spec], folder: Path) -> list[Path]:
    """Write figures in every format, all or none; Vega draws each once."""
    with files.explained(folder), tempfile.TemporaryDirectory(prefix=".drawing-", dir=folder) as temporary:
        drawn = []
        for name, spec in specs.items():
            svg = vl_convert.vegalite_to_svg(spec)
            for suffix, convert in CONVERT.items():
                drawn.append(Path(temporary, f"{name}.{suffix}"))
                drawn[-1].write_bytes(convert(svg))
        return [path.replace(folder / path.name) for path in drawn]
