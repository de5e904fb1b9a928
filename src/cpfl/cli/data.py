"""Commands for data sets: data list, get, check, import."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cpfl.cli.options import (
    AsJson,
    DataFolder,
    ExperimentName,
    PathArgument,
    Settings,
    console,
    say,
    show_json,
    show_table,
)

app = typer.Typer(help="Data sets: list, get, check, import.", no_args_is_help=True)


@app.command("list")
def list_sets(data: DataFolder = None, as_json: AsJson = False) -> None:
    """List known data sets and your own: where they are, or what is expected where one is missing.

    Example: cpfl data list
    """
    from cpfl.data import sources

    roots = sources.search_roots(data)
    sets = [sources.describe(name, roots) for name in sources.available(roots)]
    if as_json:
        keys = ("name", "what", "format", "path", "expects", "downloadable")
        show_json([{key: getattr(s, key) for key in keys} for s in sets])
        return
    table = []
    for s in sets:
        where = str(s.path or s.format)
        if s.format == "missing":
            expected = f"expected in {roots[0] / s.name}: {s.expects}"
            where = f"missing; {f'cpfl data get {s.name}' if s.downloadable else expected}"
        table.append((s.name, s.what, where))
    show_table(table, ("set", "what it is", "where"))


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known data set.")],
    data: DataFolder = None,
    mirror: Annotated[str | None, typer.Option(help="Download from this address instead of the published one.")] = None,
) -> None:
    """Download a data set and verify its checksum.

    Example: cpfl data get cifar10
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from cpfl.data import sources
    from cpfl.data.catalogue import fetch

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        root = sources.download_root(data)
        where = fetch(name, root, mirror, lambda done, total: progress.update(task, completed=done, total=total))
    say(f"{name} is in {where}")


@app.command()
def check(
    experiment: ExperimentName, settings: Settings = None, data: DataFolder = None, as_json: AsJson = False
) -> None:
    """Find images that the training, test and public sets of an experiment share. Exit code 1 if there are any.

    Example: cpfl data check digits
    """
    from cpfl.data import federated, sources
    from cpfl.data.given import Given
    from cpfl.data.samples import shared_images
    from cpfl.settings import experiment_file

    chosen = experiment_file.load(experiment, settings or [])
    used = federated.load(chosen, sources.search_roots(data), Given())  # as in a run: fitted, limited
    sets = {
        f"train ({chosen.data.train})": used.train,
        f"test ({chosen.data.train})": used.test,
        f"public ({chosen.data.public})": used.public,
    }
    found = shared_images(sets)
    if as_json:
        counts = {name: len(samples) for name, samples in sets.items()}
        show_json({"samples": counts, "shared": list(map(asdict, found))})
    else:
        for name, samples in sets.items():
            say(f"{name}: {len(samples):,} samples of shape {samples.shape}")
        say("\n".join(map(str, found)) or "no image is in more than one of them")
    if found:
        raise typer.Exit(1)


@app.command("import")
def import_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new set.")],
    source: Annotated[
        Path,
        PathArgument(metavar="FOLDER", help="train/<label>/*.png, test/<label>/*.png; or images."),
    ],
    data: DataFolder = None,
) -> None:
    """Turn a folder of images into a data set: with label folders to train on, without them as a public set.

    Example: cpfl data import leaves photos --data data
    """
    import pyarrow.parquet as pq

    from cpfl.data.importer import import_folder
    from cpfl.data.sources import download_root

    where = import_folder(source, name, download_root(data))
    files = sorted(where.glob("*.parquet"))
    images = sum(pq.read_metadata(file).num_rows for file in files)
    labelled = "label" in pq.read_schema(files[0]).names
    folder = f" --data {data}" if data is not None else ""
    say(
        f"{name}: {images:,} images {'with' if labelled else 'without'} labels, in {where}; "
        f"use them with{folder} --set data.{'train' if labelled else 'public'}={name}"
    )
