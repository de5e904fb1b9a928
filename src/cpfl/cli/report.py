"""The command that reports on finished runs: report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cpfl.cli.options import AsJson, DataFolder, Device, console, notes, show_json


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders with runs, or run folders.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; else the first DIR.")] = None,
    redistill: Annotated[
        bool, typer.Option("--redistill", help="First distill finished runs at earlier moments, from their snapshots.")
    ] = False,
    max_drop: Annotated[float, typer.Option(help="Points of accuracy that you would give up for speed.")] = 2.0,
    data: DataFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write report.html, which opens offline, and every figure as SVG, PDF and PNG.

    Example: cpfl report runs/demo --max-drop 1; cpfl report runs/demo --redistill
    """
    from cpfl.redistill import redistill as distill_again
    from cpfl.report.advice import check_max_drop
    from cpfl.report.writing import report as write
    from cpfl.report.writing import runs_in

    check_max_drop(max_drop)
    paths = runs_in(folders)
    if redistill:
        distill_again(paths, notify=lambda text: _line(notes, text), data=data, device=device)
    page, figures, tree = write(*folders, out=out, max_drop=max_drop)
    if as_json:
        show_json(
            {
                "page": str(page),
                "figures": [str(path) for path in figures],
                "experiments": [{k: g[k] for k in ("label", "n", "sentence", "reasons")} for g in tree["groups"]],
                "damaged": tree["damaged"],
            }
        )
        return
    for group in tree["groups"]:
        _line(console, (f"{group['label']}: " if len(tree["groups"]) > 1 else "") + group["sentence"])
    for damage in tree["damaged"]:
        _line(notes, f"damaged: {damage['path']}: {damage['reason']}")
    _line(console, f"page:    {page}\nfigures: {page.parent / 'figures'}, {len(figures)} files")


def _line(where: Console, text: str) -> None:
    where.print(text, highlight=False, soft_wrap=True, markup=False)
