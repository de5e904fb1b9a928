"""The look of every figure: palette, sizes, parts that Vega-Lite specifications share, and the formats of the files."""

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from cpfl.errors import CpflError, RunFolderError
from cpfl.runs import files
from cpfl.scratch import scratch_folder

# Each at 3:1 or more against a white, a light and a dark page. One meaning: an n, or an experiment among several.
PALETTE = ("#2A7AB8", "#C8590B", "#128064", "#B0529C", "#8A6A2E", "#5E6BD0", "#1F8794", "#7D7F14")
GREY = "#707A86"  # all that is neither
WIDTH, HEIGHT = 560, 300
HANDLES = 32  # files that Vega may open
PLAIN = ",.6~g"  # numbers on an axis: no powers of ten, no needless zeros; as in figures.toml
ACCURACY = "accuracy"  # the metric of runs that name none
TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
Spec = dict[str, Any]
Row = Mapping[str, Any]
Rows = Sequence[Row]
CONVERT: dict[str, Callable[[str], bytes]] = {
    "svg": str.encode,
    "pdf": lambda svg: converter().svg_to_pdf(svg),
    "png": lambda svg: converter().svg_to_png(svg, scale=2),
}
FIGURES: Spec = tomllib.loads(resources.files("cpfl.reports").joinpath("figures.toml").read_text(encoding="utf-8"))
CONFIG: Spec = FIGURES["config"] | {"view": {"stroke": None}}  # TOML knows no null
SHARED: Spec = {"$schema": "https://vega.github.io/schema/vega-lite/v6.4.1.json", "config": CONFIG}


def chart(
    description: str,
    *layers: Spec,
    height: int = HEIGHT,
    params: Sequence[Spec] = (),
    picks: Mapping[str, Any] | None = None,
    **rows: Rows,
) -> Spec:
    """The specification of a figure, for the page and for files alike.

    Parameters
    ----------
    layers
        From `mark`, drawn one above the other.
    params
        Values that a reader can choose below the figure.
    picks
        What is drawn of several, such as an n and a seed: the page has one selector for all figures.
    rows
        The data by name; the first belong to every layer that names no other.
    """
    view = layers[0] if len(layers) == 1 else {"layer": list(layers)}
    size = {"width": WIDTH, "height": height, "description": description, "data": {"name": next(iter(rows))}}
    every = [*params, *({"name": f"which_{key}", "value": value} for key, value in (picks or {}).items())]
    return SHARED | view | size | ({"params": every} if every else {}) | datasets(**rows)


def datasets(**rows: Rows) -> Spec:
    """The part of a specification that holds its rows by name."""
    return {"datasets": {name: list(values) for name, values in rows.items()}}


def mark(kind: str, encoding: Spec, *transforms: Spec, data: str = "", **look: Any) -> Spec:
    """A layer: marks of one kind for the rows, each channel with the field that it shows."""
    layer: Spec = {"mark": {"type": kind, **look}, "encoding": encoding}
    if transforms:
        layer["transform"] = list(transforms)
    return layer | ({"data": {"name": data}} if data else {})


def only(condition: str) -> Spec:
    """A transform that keeps the rows for which the expression is true."""
    return {"filter": condition}


def field(column: str, **options: Any) -> Spec:
    """What a channel shows: a column with the letter of its type, as in `hours:Q`, and its title, scale or axis."""
    name, _, letter = column.partition(":")
    return {"field": name, "type": TYPES[letter], **options}


def named(value: Any, metric: str) -> Any:
    """The same texts with the metric's name in their gaps, also within tables and lists."""
    if isinstance(value, dict):
        return {key: named(one, metric) for key, one in value.items()}
    if isinstance(value, list):
        return [named(one, metric) for one in value]
    if not isinstance(value, str):
        return value
    return value.replace("{metric}", metric).replace("{Metric}", metric[:1].upper() + metric[1:])


def channels(figure: str, metric: str = ACCURACY) -> tuple[Spec, Spec]:
    """The axes of a figure and its tooltip, as figures.toml describes them."""
    known = named(FIGURES[figure], metric)
    axes = {key: field(**known[key]) for key in ("x", "y") if key in known}
    return axes, {"tooltip": tips(**known.get("tips", {}))}


def colour_n(numbers: Sequence[int], shown: Iterable[int] | None = None) -> Spec:
    """One colour for every n, the same in all figures of an experiment; the legend has those that are `shown`."""
    values = sorted(set(numbers if shown is None else shown))
    return field("n:O", title="n", scale=scale(numbers, PALETTE), legend={"values": values, "symbolOpacity": 1})


def colour_of(name: str, values: Sequence[str], colours: Sequence[str] = PALETTE) -> Spec:
    """One colour for every name in a column."""
    legend = {"columns": 1, "labelLimit": 300}  # names are long: one a line, so that a telephone shows them
    return field(f"{name}:N", title=None, scale=scale(values, colours), legend=legend)


def scale(values: Sequence[Any], colours: Sequence[str]) -> Spec:
    """A colour for every value, from the first again where there are more values than colours."""
    return {"domain": list(values), "range": [colours[i % len(colours)] for i in range(len(values))]}


def tips(**fields: str | Sequence[str]) -> list[Spec]:
    """The fields of a tooltip: each with its number format, empty for a name, or with a title and its format."""
    known = {name: (name, how) if isinstance(how, str) else how for name, how in fields.items()}
    return [
        field(f"{name}:Q", title=title, format=form) if form else field(f"{name}:N", title=title)
        for name, (title, form) in known.items()
    ]


def save(spec: Spec, path: Path) -> Path:
    """Write a figure in the format of its file name; HTML is a page that opens offline."""
    check_open_files()
    if path.suffix == ".html":
        content = converter().vegalite_to_html(spec, bundle=True).encode()
    else:
        content = CONVERT[path.suffix[1:]](converter().vegalite_to_svg(spec))
    files.write_atomic(path, content)
    return path


def save_all(specs: Mapping[str, Spec], folder: Path) -> list[Path]:
    """Write figures in every format, all or none; Vega draws each once."""
    check_open_files()
    with files.explained(folder), scratch_folder(folder, ".drawing-") as temporary:
        drawn = []
        for name, spec in specs.items():
            svg = converter().vegalite_to_svg(spec)
            for suffix, convert in CONVERT.items():
                drawn.append(temporary / f"{name}.{suffix}")
                drawn[-1].write_bytes(convert(svg))
        return [path.replace(folder / path.name) for path in drawn]


def converter() -> Any:
    """What draws with Vega; an extra brings it."""
    try:
        import vl_convert
    except ImportError:
        raise CpflError("figures need a package that is not installed: pip install 'cpfl[report]'") from None
    return vl_convert


def check_open_files() -> None:
    """Refuse to draw without what draws, or where Vega could not open what it needs: it would end in a panic."""
    converter()
    handles: list[int] = []
    try:
        for _ in range(HANDLES):
            handles.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise RunFolderError(
            f"figures cannot be drawn: {error.strerror}; {HANDLES} more than are open now are needed (ulimit -n)"
        ) from None
    finally:
        for handle in handles:
            os.close(handle)
