"""From a name to its samples: where sets are searched, and which reader fits the files found."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cpfl.data import archives, embedded, leaf, parquet
from cpfl.data.catalogue import CATALOGUE, Entry
from cpfl.data.decoded import cache_folder
from cpfl.data.samples import Samples
from cpfl.errors import DataError

Split = Literal["train", "test", "public"]
LAYOUTS = (
    "train-*.parquet with columns image and label, LEAF's train/*.json, "
    "or the published files of CIFAR-10, STL-10 or SVHN"
)


@dataclass(frozen=True)
class Description(Entry):
    """What is known of a set without reading it."""

    path: Path | None = None  # None: built in, or not found
    format: str = "missing"  # or "built in", "parquet", "LEAF", "cifar10", "stl10", "svhn", "trace"


def search_roots(data: Path | None) -> list[Path]:
    """Where sets are looked for, in this order: the given folder, $CPFL_DATA, the user's cache folder."""
    chosen = os.environ.get("CPFL_DATA")
    roots = [data, Path(chosen) if chosen else None, cache_folder() / "data"]
    return [root.expanduser() for root in roots if root is not None]


def download_root(data: Path | None) -> Path:
    """Where downloads and imports go: the given folder, else the user's cache folder."""
    return search_roots(data)[0 if data is not None else -1]


def available(roots: Sequence[Path]) -> list[str]:
    """The known sets, then the user's own folders under these roots."""
    user_sets = {
        folder.name
        for root in roots
        if root.is_dir()
        for folder in root.iterdir()
        if folder.name not in CATALOGUE and folder.is_dir() and _format(folder) is not None
    }
    return [*CATALOGUE, *sorted(user_sets)]


def locate(name: str, roots: Sequence[Path]) -> Path:
    """The folder of a set: a path as it is, a name under the first root that has it."""
    if is_path(name):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise DataError(f"the data set '{name}' is a path that is not a folder: expected there: {LAYOUTS}")
        if _format(folder) is None:
            raise DataError(f"the folder '{name}' holds no data set: expected there: {LAYOUTS}")
        return folder
    entry = CATALOGUE.get(name)
    if _is_embedded(name):
        raise DataError(f"the data set '{name}' is built in and has no folder")
    for root in roots:
        if (root / name).is_dir() and (_format(root / name) is not None or (entry and entry.source == "trace")):
            return root / name
    raise DataError(_not_found(name, entry, roots))


def load(name: str, split: Split, roots: Sequence[Path], public_splits: Sequence[str] = ()) -> Samples | None:
    """One split of a set. None only where a set has no test split.

    "public" is what is distilled on: no labels, the splits of the set's public use or those that are named.
    """
    samples = _public(name, roots, public_splits) if split == "public" else _split(name, split, roots)
    if samples is None and split != "test":
        folder = locate(name, roots)
        raise DataError(f"the data set '{name}' at {folder} has no '{split}' split: it has {_splits(folder)}")
    return samples


def class_names(name: str, roots: Sequence[Path]) -> list[str] | None:
    """What a set's labels are called, where it says so."""
    try:
        folder = locate(name, roots)
    except DataError:
        return None
    return parquet.class_names(folder) if _format(folder) == "parquet" else None


def describe(name: str, roots: Sequence[Path] | None = None) -> Description:
    """What a set is, where it lies and in which format. Never fails for a known name."""
    entry = CATALOGUE.get(name)
    if entry is not None and entry.source == "embedded":
        return Description(**vars(entry), format="built in")
    try:
        path = locate(name, search_roots(None) if roots is None else roots)
    except DataError:
        if entry is None:
            raise
        return Description(**vars(entry))
    entry = entry or Entry(name, "a set of your own", LAYOUTS)
    return Description(**vars(entry), path=path, format=_format(path) or "trace")


def _public(name: str, roots: Sequence[Path], splits: Sequence[str]) -> Samples | None:
    parts = []
    for split in splits or _public_splits(name, roots):
        part = _split(name, split, roots)
        if part is None and split == "train":
            return None
        if part is None:
            held = "train" if _is_embedded(name) else _splits(locate(name, roots))
            raise DataError(
                f"the public set '{name}' has no '{split}' split, which its public use names: it has {held}"
            )
        parts.append(part.x)
    return Samples(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _public_splits(name: str, roots: Sequence[Path]) -> tuple[str, ...]:
    """By the set's name, or for a folder under another name by the published files it holds."""
    entry = CATALOGUE.get(Path(name).name) if is_path(name) else CATALOGUE.get(name)
    if entry is None:
        entry = CATALOGUE.get(archives.recognise(locate(name, roots)) or "")
    return entry.public if entry else ("train",)


def _split(name: str, split: str, roots: Sequence[Path]) -> Samples | None:
    if name in CATALOGUE and CATALOGUE[name].source == "trace":
        raise DataError(f"'{name}' is a device trace and holds no samples: it belongs under devices.trace")
    if _is_embedded(name):
        return embedded.read(name, split)
    folder = locate(name, roots)
    match _format(folder):
        case "parquet":
            return parquet.read(folder, split)
        case "LEAF":
            return leaf.read(folder, split)
        case kind:
            assert kind is not None, "locate() saw a format"
            return archives.read(folder, kind, split)


def _is_embedded(name: str) -> bool:
    return name in CATALOGUE and CATALOGUE[name].source == "embedded"


def _format(folder: Path) -> str | None:
    """What lies in a folder. Parquet comes first: it is the quickest to read."""
    if parquet.splits(folder):
        return "parquet"
    return archives.recognise(folder) or ("LEAF" if leaf.splits(folder) else None)


def _splits(folder: Path) -> str:
    return ", ".join(parquet.splits(folder) or leaf.splits(folder)) or "none"


def is_path(name: str) -> bool:
    """Whether a name is meant as a path."""
    return name.startswith(("~", ".")) or "/" in name or os.sep in name


def _not_found(name: str, entry: Entry | None, roots: Sequence[Path]) -> str:
    searched = ", ".join(str(root / name) for root in roots)
    if entry is not None:
        remedy = f"; `cpfl data get {name}` downloads it" if entry.downloadable else ""
        return f"the data set '{name}' was not found at {searched}: expected there: {entry.expects}{remedy}"
    near = difflib.get_close_matches(name, available(roots), n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    return (
        f"the data set '{name}' is unknown and was not found at {searched}: {meant}"
        f"Known are {', '.join(CATALOGUE)}; a folder of your own holds {LAYOUTS}"
    )
