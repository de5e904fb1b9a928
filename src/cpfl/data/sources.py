"""From a name to its samples: where sets are searched, and which reader fits the files found."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from cpfl.data import archives, columns, embedded, natural, parquet, saved, tables
from cpfl.data.catalogue import CATALOGUE, Entry, cache_folder
from cpfl.data.samples import Samples
from cpfl.data.tables import Roles
from cpfl.errors import DataError, SettingError
from cpfl.registry import did_you_mean
from cpfl.user_files import expanded

Split = Literal["train", "test", "public"]
TABLES = ("table", "saved")  # formats whose columns an experiment may name
LAYOUTS = (
    "train-*.parquet with columns image and label, train-*.csv, .npz or .parquet with columns of labels and numbers, "
    "what save_to_disk of Hugging Face writes, LEAF's train/*.json, or the published files of CIFAR-10, STL-10 or SVHN"
)


def search_roots(data: Path | None) -> list[Path]:
    """Where sets are looked for, in this order: the given folder, $CPFL_DATA, the user's cache folder."""
    chosen = os.environ.get("CPFL_DATA")
    named = [("--data", data), ("$CPFL_DATA", Path(chosen) if chosen else None)]
    return [*(expanded(root, what) for what, root in named if root is not None), cache_folder() / "data"]


def download_root(data: Path | None) -> Path:
    """Where downloads and imports go: the given folder, else the user's cache folder."""
    return search_roots(data)[0 if data is not None else -1]


def available(roots: Sequence[Path]) -> list[str]:
    """The known sets, then the user's own folders under these roots."""
    user_sets = {
        folder.name
        for root in roots
        for folder in _folders(root)
        if folder.name not in CATALOGUE and _format(folder) is not None
    }
    return [*CATALOGUE, *sorted(user_sets)]


def _folders(root: Path) -> list[Path]:
    """The folders in a folder; none where it cannot be read."""
    try:
        return [folder for folder in root.iterdir() if os.path.isdir(folder)]
    except OSError:
        return []


def describe(name: str, roots: Sequence[Path]) -> Entry:
    """What a set is, where it lies and in which format. Never fails for a known name.

    A path is taken as it is, a name is looked for under the roots in their order.
    """
    entry = CATALOGUE.get(name)
    if entry is not None and entry.source == "embedded":
        return replace(entry, format="built in")
    is_trace = entry is not None and entry.source == "trace"
    by_path = is_path(name) or (name.endswith(columns.SUFFIXES) and os.path.isfile(name))
    for folder in [expanded(Path(name), "the data set")] if by_path else [root / name for root in roots]:
        if os.path.exists(folder) and (found := _format(folder) or ("trace" if is_trace else None)):
            return replace(entry or Entry(name, "a set of your own", LAYOUTS), path=folder, format=found)
    if entry is None:
        raise DataError(_not_found(name, roots))
    return entry


def load(
    name: str,
    split: Split,
    roots: Sequence[Path],
    public_splits: Sequence[str] = (),
    limit: int = 0,
    roles: Roles = Roles(),  # noqa: B008 (it cannot change)
) -> Samples | None:
    """One split of a set. None only where a set has no test split.

    "public" is what is distilled on: no labels, the splits of the set's public use or those that are named. With a
    limit the first so many samples are needed; there may be more. `roles` are columns of a table.
    """
    about = describe(name, roots)
    if about.source == "trace":
        raise DataError(f"'{name}' is a device trace and holds no samples: it belongs under devices.trace")
    if about.format == "missing":
        raise DataError(_not_found(name, roots))
    if split != "public":
        return _read(about, split, split, limit, roles)
    # A folder under another name may still hold the published files of a known set.
    known = CATALOGUE.get(Path(name).name) or CATALOGUE.get(about.format) or about
    named = public_splits or (("train",) if about.format in TABLES else known.public)
    parts = [part for one in named if (part := _read(about, one, split, limit, roles)) is not None]
    x = parts[0].x if len(parts) == 1 else np.concatenate([part.x for part in parts])
    return Samples(x, fields=parts[0].fields, names=parts[0].names)


def _read(about: Entry, split: str, use: Split, limit: int, roles: Roles) -> Samples | None:
    """One split of a set that was found; None only where it is used as a test set and missing."""
    if roles.label and use == "train" and about.format not in TABLES:
        raise SettingError(
            f"data.label = {roles.label!r} names a column of a table (csv, npz, parquet or save_to_disk); "
            f"the labels of '{about.name}' are known"
        )
    if about.path is None:
        samples = embedded.read(about.name, split)
    elif about.format == "table":
        samples = tables.read(about.path, split, roles, labelled=use != "public")
    elif about.format == "saved":
        samples = saved.read(about.path, split, roles, limit, labelled=use != "public")
    elif about.format in natural.READERS:
        samples = natural.READERS[about.format].read(about.path, split)
    elif about.format == "parquet":
        samples = parquet.read(about.path, split, limit)
    else:
        samples = archives.read(about.path, about.format, split)
    if samples is None and use != "test":
        held = ["train"] if about.path is None else _splits(about.path)
        missing = f"the data set '{about.name}' at {about.path} has no '{use}' split"
        if split != "train":
            missing = f"the public set '{about.name}' has no '{split}' split, which its public use names"
        raise DataError(f"{missing}: it has {', '.join(held) or 'none'}")
    return samples


def _splits(path: Path) -> list[str]:
    if path.is_file():
        return list(tables.splits(path))
    if natural.recognise(path):
        return list(natural.SPLITS)
    found = saved.splits(path) or parquet.splits(path) or archives.leaf_splits(path)
    return found or sorted(tables.splits(path))


def _format(path: Path) -> str | None:
    """What lies in a folder, or what a file is. Parquet comes first: it is the quickest to read.

    None: nothing, or it cannot be read.
    """
    try:
        if os.path.isfile(path):
            return "table" if tables.splits(path) else None
        if saved.splits(path):
            return "saved"
        if parquet.splits(path):
            return "parquet" if parquet.has_images(path) else "table"
        return archives.recognise(path) or natural.recognise(path) or ("table" if tables.splits(path) else None)
    except OSError:
        return None


def class_names(name: str, roots: Sequence[Path], roles: Roles) -> list[str]:
    """What the classes of a set are called, where its files or the catalogue say it; else an empty list."""
    about = describe(name, roots)
    if about.path is None:
        return []
    if about.format == "table":
        return list(tables.class_names(about.path, roles))
    if about.format == "saved":
        return saved.class_names(about.path, roles)
    if about.format == "parquet":
        return parquet.class_names(about.path)
    return list(CATALOGUE.get(about.format, about).class_names)


def is_path(name: str) -> bool:
    """Whether a name is meant as a path."""
    return name.startswith(("~", ".")) or "/" in name or os.sep in name


def _not_found(name: str, roots: Sequence[Path]) -> str:
    if is_path(name) and not os.path.exists(expanded(Path(name), "the data set")):
        return f"the data set '{name}' is a path that is not a folder or table: expected there: {LAYOUTS}"
    if is_path(name) and os.path.isfile(expanded(Path(name), "the data set")):
        return f"the file '{name}' is no data set: expected there: {LAYOUTS}"
    if is_path(name):
        return f"the folder '{name}' holds no data set: expected there: {LAYOUTS}"
    searched = ", ".join(str(root / name) for root in roots)
    if entry := CATALOGUE.get(name):
        remedy = f"; `cpfl data get {name}` downloads it" if entry.downloadable else ""
        return f"the data set '{name}' was not found at {searched}: expected there: {entry.expects}{remedy}"
    if os.path.isdir(name):
        return f"the data set '{name}' was not found at {searched}: for the folder of this name here, write './{name}'"
    return (
        f"the data set '{name}' is unknown and was not found at {searched}: {did_you_mean(name, available(roots))}"
        f"Known are {', '.join(CATALOGUE)}; a folder of your own holds {LAYOUTS}"
    )
