"""Commands around the global model and this machine: export, predict, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cpfl import doctor as examination
from cpfl.cli.options import AsJson, DataFolder, RunPath, console, show_json
from cpfl.export import export as write
from cpfl.predict import predict as answer

Student = Annotated[str, typer.Option("--distillation", help="The name of a later distillation of the run.")]


def add_to(app: typer.Typer) -> None:
    """Put the commands into the program."""
    for command in (export, predict, doctor):
        app.command()(command)


def export(
    path: RunPath,
    out: Annotated[Path | None, typer.Option(help="A folder; else export/ in the run folder.")] = None,
    onnx: Annotated[bool, typer.Option(help="Also write ONNX.")] = True,
    distillation: Student = "",
    as_json: AsJson = False,
) -> None:
    """Write the global model as safetensors and ONNX.

    Example: cpfl export DIR --out model
    """
    written = [str(file) for file in write(path, out, distillation=distillation, onnx=onnx)]
    if as_json:
        show_json(written)
    else:
        console.print("\n".join(written), highlight=False, soft_wrap=True)


def predict(
    path: RunPath,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or one image.")],
    distillation: Student = "",
    as_json: AsJson = False,
) -> None:
    """Classify images with the global model; other sizes are fitted.

    Example: cpfl predict DIR photos
    """
    rows = list(answer(path, images, distillation))
    if as_json:
        show_json(rows)
        return
    table = Table()
    for name, justify in (("image", "left"), ("class", "right"), ("probability", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(row["image"], row["name"], f"{100 * row['probability']:.1f} %")
    console.print(table)


def doctor(data: DataFolder = None, as_json: AsJson = False) -> None:
    """Show what this machine has for cpfl.

    Example: cpfl doctor
    """
    checks = examination.examine(data)
    if as_json:
        show_json([{"what": what, "fine": fine, "found": found} for what, fine, found in checks])
    else:
        for what, fine, found in checks:
            console.print(f"{'ok ' if fine else 'BAD'}  {what:<16} {found}", highlight=False, soft_wrap=True)
    if not all(fine for _, fine, _ in checks):
        raise typer.Exit(1)
