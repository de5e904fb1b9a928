"""Write a report over run folders: the page, and every figure as a file beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cpfl.errors import RunFolderError
from cpfl.report.advice import MAX_DROP, check_max_drop
from cpfl.report.reading import find_runs
from cpfl.runs import files

if TYPE_CHECKING:
    from cpfl.report.content import Tree

FIGURES = "figures"
# For a second process, while this one reads the runs: Vega's script takes more than a second to make.
VEGA = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
DRAWN = re.compile(r'<div class="picture" data-figure="([\w.-]+)"')  # in a page: the names of its figures


class Written(NamedTuple):
    """The files of a report, and its content."""

    page: Path
    figures: list[Path]
    content: Tree


def report(*folders: str | Path, out: str | Path | None = None, max_drop: float = MAX_DROP) -> Written:
    """Write report.html and figures/ over all runs in these folders.

    Parameters
    ----------
    folders
        Folders with runs, or run folders.
    out
        Where to write; else the first folder.
    max_drop
        Points of accuracy that the recommended n may lose against plain federated learning (n = 1).
    """
    check_max_drop(max_drop)
    paths = runs_in(map(Path, folders))
    where = Path(out) if out is not None else Path(folders[0])
    with files.explained(where):
        (where / FIGURES).mkdir(parents=True, exist_ok=True)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "encoding": "utf-8"}
    with subprocess.Popen([sys.executable, "-c", VEGA], **pipes) as other:
        from cpfl.report import page, style
        from cpfl.report.content import all_figures, content

        tree = content(paths, max_drop)
        drawn = style.save_all({figure["id"]: figure["spec"] for figure in all_figures(tree)}, where / FIGURES)
        vega, _ = other.communicate()
    _remove_old(where, {path.name for path in drawn}, style.CONVERT)
    text = page.render(tree, files=FIGURES, vega=vega)
    files.write_atomic(where / "report.html", text.encode())
    return Written(where / "report.html", drawn, tree)


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """All run folders at or below these, each once; an error if there is none."""
    wanted = list(folders)
    found = {path.resolve(): path for folder in wanted for path in find_runs(folder)}
    if not found:
        raise RunFolderError(f"there are no runs in {', '.join(map(str, wanted))}: no folder there has a run.json")
    return list(found.values())


def _remove_old(where: Path, kept: Container[str], formats: Iterable[str]) -> None:
    """Remove figures that the previous report drew and that this one does not."""
    page = where / "report.html"
    named = DRAWN.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    for file in (f"{name}.{suffix}" for name in named for suffix in formats):
        if file not in kept:
            (where / FIGURES / file).unlink(missing_ok=True)
