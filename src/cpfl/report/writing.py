"""From run folders to files: the page, and every picture beside it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cpfl.errors import RunFolderError
from cpfl.report.advice import LOSS, check_loss
from cpfl.report.tables import find_runs
from cpfl.runs import files

if TYPE_CHECKING:
    from cpfl.report.content import Tree
    from cpfl.report.drawing import Spec

FIGURES = "figures"
DRAWN = re.compile(r'<div class="picture" data-figure="([\w.-]+)"')  # in a page: the names of its pictures


@dataclass(frozen=True)
class Written:
    """Where the report lies, and what it says."""

    page: Path
    figures: list[Path]
    content: Tree


def report(*folders: str | Path, out: str | Path | None = None, loss: float = LOSS) -> Written:
    """Write report.html and figures/ over all runs in these folders, for a tolerated loss of accuracy in points.

    `out` is where to; else the first folder.
    """
    check_loss(loss)
    paths = runs_in(map(Path, folders))
    where = Path(out) if out is not None else Path(folders[0])
    with files.explained(where):
        (where / FIGURES).mkdir(parents=True, exist_ok=True)
    with _Drawers(where / FIGURES) as drawers:
        # Drawing takes half a second to import, which no other use of cpfl need pay.
        from cpfl.report import page
        from cpfl.report.content import all_figures, content

        tree = content(paths, loss)
        drawn = {figure["id"]: figure["spec"] for figure in all_figures(tree)}
        pictures, vega = drawers.draw(drawn)
    _remove_old(where, {picture.name for picture in pictures})
    text = page.render(tree, files=FIGURES, vega=vega)
    files.write_atomic(where / "report.html", text.encode())
    return Written(where / "report.html", pictures, tree)


class _Drawers:
    """Two processes that draw: this one, and one that begins with what takes long while the runs are still read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        with files.explained(self._folder):
            self._place = tempfile.TemporaryDirectory(prefix=".drawing-", dir=self._folder)
        words = [sys.executable, str(Path(__file__).with_name("drawing.py")), self._place.name]
        pipe = subprocess.PIPE
        self._other = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        with self._other:
            self._other.kill()
        self._place.cleanup()

    def draw(self, specs: Mapping[str, Spec]) -> tuple[list[Path], str]:
        """All pictures in their place, each whole, and Vega's script."""
        from cpfl.report.drawing import CONVERT, draw

        names, place, other = list(specs), Path(self._place.name), self._other
        assert other.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and says why below
            json.dump({name: specs[name] for name in names[::2]}, other.stdin)
            other.stdin.close()
        other.stdin = None
        with files.explained(self._folder):
            for name in names[1::2]:
                draw(specs[name], place, name)
        vega, trouble = other.communicate()
        if other.returncode:
            raise RunFolderError(f"cannot write {self._folder}: {trouble.strip().splitlines()[-1]}")
        made = [f"{name}.{suffix}" for name in names for suffix in CONVERT]
        with files.explained(self._folder):
            return [(place / file).replace(self._folder / file) for file in made], vega


def _remove_old(where: Path, kept: Container[str]) -> None:
    """Pictures that the report which is about to be replaced drew, and that are drawn no more."""
    from cpfl.report.drawing import CONVERT

    page = where / "report.html"
    named = DRAWN.findall(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else []
    for file in (f"{name}.{suffix}" for name in named for suffix in CONVERT):
        if file not in kept:
            (where / FIGURES / file).unlink(missing_ok=True)


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """All run folders at or below these, each once; none is a mistake."""
    wanted = list(folders)
    found = {path.resolve(): path for folder in wanted for path in find_runs(folder)}
    if not found:
        raise RunFolderError(f"there are no runs in {', '.join(map(str, wanted))}: no folder there has a run.json")
    return list(found.values())
