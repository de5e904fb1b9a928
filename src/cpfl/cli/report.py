"""The command that looks at runs as a whole: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cpfl.cli.options import AsJson, DataFolder, Device, console, notes, show_json
from cpfl.report.advice import LOSS, check_loss
from cpfl.report.writing import report as write
from cpfl.report.writing import runs_in
from cpfl.study import study as distil_earlier


def add_to(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command()(report)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders with runs, or run folders.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; else the first DIR.")] = None,
    study: Annotated[
        bool, typer.Option("--study", help="First distil finished runs at quorums and moments, from their snapshots.")
    ] = False,
    loss: Annotated[float, typer.Option(help="Points of accuracy that you would give for speed.")] = LOSS,
    data: DataFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write report.html, which opens offline, and every figure as SVG, PDF and PNG.

    Example: cpfl report runs/demo --loss 1; cpfl report runs/demo --study
    """
    check_loss(loss)
    paths = runs_in(folders)
    if study:
        distil_earlier(paths, note=_note, data=data, device=device)
    written = write(*folders, out=out, loss=loss)
    tree = written.content
    if as_json:
        show_json(
            {
                "page": str(written.page),
                "figures": [str(path) for path in written.figures],
                "experiments": [{k: g[k] for k in ("label", "n", "sentence", "reasons")} for g in tree["groups"]],
                "damaged": tree["damaged"],
            }
        )
        return
    for group in tree["groups"]:
        start = f"{group['label']}: " if len(tree["groups"]) > 1 else ""
        console.print(f"{start}{group['sentence']}", highlight=False, soft_wrap=True, markup=False)
    for damage in tree["damaged"]:
        notes.print(f"damaged: {damage['path']}: {damage['reason']}", highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"page:    {written.page}\nfigures: {written.page.parent / 'figures'}, {len(written.figures)} files",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip


def _note(text: str) -> None:
    notes.print(text, highlight=False, soft_wrap=True, markup=False)
