"""Commands for a finished run's global model: export, predict."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cpfl.cli.options import AsJson, RunPath, console, say, show_json

Distillation = Annotated[str, typer.Option("--distillation", help="Name of a later distillation of the run.")]


def export(
    path: RunPath,
    out: Annotated[Path | None, typer.Option(help="Folder to write to. Default: export/ in the run folder.")] = None,
    onnx: Annotated[bool, typer.Option(help="Also write ONNX.")] = True,
    distillation: Distillation = "",
    as_json: AsJson = False,
) -> None:
    """Write the global model as safetensors and ONNX.

    Example: cpfl export DIR --out model
    """
    from cpfl.inference.global_model import export as write

    written = [str(file) for file in write(path, out, distillation=distillation, onnx=onnx)]
    if as_json:
        show_json(written)
    else:
        say("\n".join(written))


def predict(
    path: RunPath,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or one image.")],
    distillation: Distillation = "",
    as_json: AsJson = False,
) -> None:
    """Classify images with the global model. Images of other sizes are resized.

    Example: cpfl predict DIR photos
    """
    from cpfl.inference.global_model import predict as classify

    rows = list(classify(path, images, distillation))
    if as_json:
        show_json(rows)
        return
    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("class", justify="right", overflow="fold")
    table.add_column("probability", justify="right")
    for row in rows:
        table.add_row(row["image"], row["name"], f"{100 * row['probability']:.1f} %")
    console.print(table)
