"""The page of a report, one HTML file that needs nothing else, and every figure as a file beside it."""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from pathlib import Path
from subprocess import DEVNULL, PIPE, run
from typing import Any, NamedTuple

import jinja2

from cpfl.errors import RunFolderError
from cpfl.reports import style
from cpfl.reports.advice import check_limits
from cpfl.reports.content import Tree, all_figures, content
from cpfl.reports.tuned import split
from cpfl.reports.verdict import Limits
from cpfl.runs import files
from cpfl.runs.finding import find_runs
from cpfl.user_files import expanded

FIGURES = "figures"
SCRIPTS = ("verdict", "copying", "explorer", "compare", "handling", "page")  # in page/, each uses those before it
# For a second process: Vega's script takes more than a second to make, and the engine that makes it stays in memory.
VEGA = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
DRAWN = re.compile(r'<div class="picture" data-figure="([\w.-]+)"')  # in a page: the names of its figures

_pages = resources.files("cpfl.reports").joinpath("page")
_templates = jinja2.Environment(
    loader=jinja2.FunctionLoader(lambda name: _pages.joinpath(name).read_text(encoding="utf-8")),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, made once in a process."""
    made = run([sys.executable, "-c", VEGA], stdout=PIPE, stderr=DEVNULL, encoding="utf-8", check=False)
    return made.stdout or str(style.converter().javascript_bundle())


class Written(NamedTuple):
    """The files of a report, and its content."""

    page: Path
    figures: list[Path]
    content: Tree


def report(
    *folders: str | Path,
    out: str | Path | None = None,
    max_drop: float = 2.0,
    max_hours: float | None = None,
    max_cpu_hours: float | None = None,
    max_gb: float | None = None,
) -> Written:
    """Write report.html and figures/ over all runs in these folders.

    Parameters
    ----------
    folders
        Folders with runs, or run folders.
    out
        Where to write; else the first folder.
    max_drop
        Points of accuracy that the recommended n may lose against plain federated learning (n = 1).
    max_hours, max_cpu_hours, max_gb
        What it may take at most: virtual hours until its slowest seed ends, CPU hours of all clients, traffic.
    """
    limits = Limits(max_drop, max_hours, max_cpu_hours, max_gb)
    check_limits(limits)
    style.converter()  # first: where it is missing, nothing is written
    wanted = [expanded(Path(folder), "the folder") for folder in folders]
    tunes, paths = split(wanted, runs_in(wanted))
    where = expanded(Path(out), "out") if out is not None else wanted[0]
    with files.explained(where):
        (where / FIGURES).mkdir(parents=True, exist_ok=True)
    style.check_open_files()
    with ThreadPoolExecutor(1) as other:
        other.submit(vega)  # while this thread reads the runs
        tree = content(paths, limits, tunes)
        drawn = style.save_all({figure["id"]: figure["spec"] for figure in all_figures(tree)}, where / FIGURES)
    _remove_old(where, {path.name for path in drawn})
    page = where / "report.html"
    files.write_atomic(page, render(tree, folder=FIGURES).encode())
    return Written(page, drawn, tree)


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """All run folders at or below these, each once; an error if there is none."""
    wanted = list(folders)
    found = {path.resolve(): path for folder in wanted for path in find_runs(folder)}
    if not found:
        raise RunFolderError(f"there are no runs in {', '.join(map(str, wanted))}: no folder there has a run.json")
    return list(found.values())


def _remove_old(where: Path, kept: Container[str]) -> None:
    """Remove figures that the previous report drew and that this one does not."""
    page = where / "report.html"
    named = DRAWN.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    for file in (f"{name}.{suffix}" for name in named for suffix in style.CONVERT):
        if file not in kept:
            (where / FIGURES / file).unlink(missing_ok=True)


def render(tree: Tree, *, refresh: str = "", folder: str = "") -> str:
    """The whole page, which opens offline.

    Parameters
    ----------
    refresh
        An address that answers with `fresh(tree)` as JSON; the page then polls it and shows what has changed.
    folder
        The folder of the figures, to link them.
    """
    live = ("live",) if refresh else ()
    # The script that draws is last: until it is read, a reader can use everything else.
    scripts = [*(_pages.joinpath(f"{name}.js").read_text("utf-8") for name in (*SCRIPTS, *live)), vega()]
    styles = [_pages.joinpath(f"{name}.css").read_text("utf-8") for name in ("page", *live)]
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    update = fresh(tree, folder)
    drawn = {key: update[key] for key in ("figures", "explorers")}
    figures = json.dumps(drawn, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return _templates.get_template("page.html").render(
        tree=tree,
        body=update["body"],
        figures=figures.replace("<", "\\u003c"),  # cannot end the script element it stands in
        refresh=refresh,
        style="".join(styles),
        scripts=scripts,
        hashes=[f"sha256-{base64.b64encode(digest).decode()}" for digest in digests],  # a browser runs no other script
    )


def fresh(tree: Tree, folder: str = "") -> dict[str, Any]:
    """What an open page needs to show this tree: the text, every name in it escaped, and the figures.

    The figures are as wide as the page allows, and without titles: the page has headings of its own.
    """
    fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    figures = {
        figure["id"]: {key: value for key, value in figure["spec"].items() if key != "title"} | fit
        for figure in all_figures(tree)
    }
    body = _templates.get_template("body.html").render(tree=tree, files=folder, formats=list(style.CONVERT))
    return {"body": body, "figures": figures, "explorers": tree["explorers"]}
