"""Commands around data sets: data list, get, check, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from cpfl import experiment_file
from cpfl.cli.options import AsJson, DataFolder, ExperimentName, Settings, console, show_json
from cpfl.data import federated, overlap, sources
from cpfl.data import fetch as fetching
from cpfl.data.federated import Given
from cpfl.data.importer import import_folder

app = typer.Typer(help="Data sets: list, get, check, import.", no_args_is_help=True)


@app.command("list")
def list_sets(data: DataFolder = None, as_json: AsJson = False) -> None:
    """List known data sets and your own, where they lie, and what is expected where one is missing.

    Example: cpfl data list
    """
    roots = sources.search_roots(data)
    sets = [sources.describe(name, roots) for name in sources.available(roots)]
    if as_json:
        show_json(
            [
                {
                    "name": s.name,
                    "what": s.what,
                    "format": s.format,
                    "path": None if s.path is None else str(s.path),
                    "expects": s.expects,
                    "downloadable": s.downloadable,
                }
                for s in sets
            ]
        )
        return
    table = Table()
    for name in ("set", "what it is", "where"):
        table.add_column(name, overflow="fold")
    for s in sets:
        lacking = (
            f"missing; cpfl data get {s.name}"
            if s.downloadable
            else f"missing; expected in {roots[0] / s.name}: {s.expects}"
        )
        table.add_row(s.name, s.what, lacking if s.format == "missing" else str(s.path or s.format))
    console.print(table)


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known data set.")],
    data: DataFolder = None,
    mirror: Annotated[str | None, typer.Option(help="Fetch from this address instead of the published one.")] = None,
) -> None:
    """Download a data set and verify its checksum.

    Example: cpfl data get cifar10
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        root = sources.download_root(data)
        where = fetching.fetch(
            name, root, mirror, lambda done, total: progress.update(task, completed=done, total=total)
        )
    console.print(f"{name} is in {where}", highlight=False, soft_wrap=True)


@app.command()
def check(
    experiment: ExperimentName, settings: Settings = None, data: DataFolder = None, as_json: AsJson = False
) -> None:
    """Find images that the training, test and public sets of an experiment share. Exit code 1 if there are any.

    Example: cpfl data check digits
    """
    chosen = experiment_file.load(experiment, settings or [])
    roots = sources.search_roots(data)
    used = federated.load(chosen, roots, Given())  # what a run would use: fitted, held out, limited
    sets = {
        f"train ({chosen.data.train})": used.train,
        f"test ({chosen.data.train})": used.test,
        f"public ({chosen.data.public})": used.public,
    }
    found = overlap.shared_images(sets)
    if as_json:
        show_json(
            {
                "samples": {name: len(samples) for name, samples in sets.items()},
                "shared": [
                    {"first": o.first, "second": o.second, "images": o.images, "examples": o.examples} for o in found
                ],
            }
        )
    else:
        for name, samples in sets.items():
            console.print(f"{name}: {len(samples):,} samples of shape {samples.shape}", highlight=False, soft_wrap=True)
        for shared in found:
            console.print(str(shared), highlight=False, soft_wrap=True)
        if not found:
            console.print("no image is in more than one of them", highlight=False)
    if found:
        raise typer.Exit(1)


@app.command("import")
def import_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the new set is called.")],
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="train/<label>/*.png, test/<label>/*.png; or images.")
    ],
    data: DataFolder = None,
) -> None:
    """Turn a folder of images into a data set: with label folders to train on, without them as a public set.

    Example: cpfl data import leaves photos --data data
    """
    where = import_folder(source, name, sources.download_root(data))
    files = sorted(where.glob("*.parquet"))
    images = sum(pq.read_metadata(file).num_rows for file in files)
    labelled = "label" in pq.read_schema(files[0]).names
    use = "train" if labelled else "public"
    folder = f" --data {data}" if data is not None else ""
    console.print(
        f"{name}: {images:,} images {'with' if labelled else 'without'} labels, in {where}; "
        f"use them with{folder} --set data.{use}={name}",
        soft_wrap=True,
        highlight=False,
    )
