"""A folder of image files becomes a set of the user's own, in the same parquet layout that every other set has."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cpfl.data.catalogue import CATALOGUE
from cpfl.data.parquet import SUFFIXES, UNREADABLE, decode_image, why_unreadable
from cpfl.data.sources import is_path
from cpfl.errors import DataError, first_line
from cpfl.scratch import scratch_folder
from cpfl.settings.types import is_text

LAYOUT = "train/<label>/<image> and optionally test/<label>/<image>, or images without label folders"
BATCH = 4096  # images in memory at a time

Images = list[tuple[Path, str | None]]
"""Files and their labels."""


def import_folder(source: Path, name: str, root: Path) -> Path:
    """Write `<root>/<name>/` from a folder of images, whole or not at all; returns that folder."""
    target = root / name
    if not name or is_path(name) or not is_text(name):
        raise DataError(f"'{name}' cannot be a set's name: a plain folder name is allowed")
    if name in CATALOGUE:
        raise DataError(f"'{name}' is the name of a known set: choose one that is not among {', '.join(CATALOGUE)}")
    try:
        if target.exists():
            raise DataError(f"{target} exists already: remove it or choose another name")
        if not source.is_dir():
            raise DataError(f"{source} is not a folder: {LAYOUT} is expected there")
        found = {"train": _images(source / "train" if (source / "train").is_dir() else source)}
        if (source / "test").is_dir() and (test := _images(source / "test")):
            found["test"] = test
    except OSError as error:
        raise DataError(f"{error.filename or source} cannot be read: {error.strerror}") from error
    for image, _ in [image for images in found.values() for image in images]:
        if not is_text(str(image.relative_to(source))):
            raise DataError(f"{image} has a name that is no text (UTF-8): rename it")
    if not found["train"]:
        raise DataError(f"{source} holds no images ({', '.join(SUFFIXES)}): {LAYOUT} is expected there")
    classes = _classes(found, source)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with scratch_folder(root, f".{name}-") as temporary:
            building = temporary / name
            building.mkdir()
            _write(building, found, classes, source)
            building.rename(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {first_line(error)}") from error
    return target


def _images(folder: Path) -> Images:
    """Every image and its label: the name of the folder it lies in, or None directly in `folder`."""
    direct: Images = []
    below: Images = []
    for entry in sorted(folder.iterdir()):
        for file in sorted(entry.rglob("*")) if entry.is_dir() else [entry]:
            hidden = file.name.startswith(".") or entry.name.startswith(".")
            if file.suffix.lower() in SUFFIXES and file.is_file() and not hidden:
                (below if entry.is_dir() else direct).append((file, entry.name if entry.is_dir() else None))
    if direct and below:
        raise DataError(
            f"{folder} holds images both directly ({direct[0][0].name}) and in label folders ({below[0][1]}): "
            "either all images have a label folder or none has"
        )
    return direct + below


def _classes(found: dict[str, Images], source: Path) -> list[str]:
    """The label folders of the training images in sorted order; empty where there are none."""
    names = {split: {label for _, label in images if label is not None} for split, images in found.items()}
    if unknown := names.get("test", set()) - names["train"]:
        raise DataError(
            f"{source / 'test'} has the label '{min(unknown)}', which {source / 'train'} has not: "
            f"its labels are {', '.join(sorted(names['train'])) or 'none'}"
        )
    if names["train"] and "test" in names and not names["test"]:
        raise DataError(f"{source / 'test'} has no label folders while {source / 'train'} has")
    return sorted(names["train"])


def _write(target: Path, found: dict[str, Images], classes: list[str], source: Path) -> None:
    """Write all splits. The images stay as they were encoded; each is decoded once to check that it can be."""
    fields = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())])}
    features: dict[str, object] = {"image": {"_type": "Image"}}  # what the hub's own tools read beside the columns
    if classes:
        fields["label"] = pa.int64()
        features["label"] = {"names": classes, "_type": "ClassLabel"}
    schema = pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    size: tuple[int, ...] = ()
    for split, images in found.items():
        with pq.ParquetWriter(target / f"{split}-00000-of-00001.parquet", schema) as writer:
            for start in range(0, len(images), BATCH):
                rows: list[dict[str, object]] = []
                for path, label in images[start : start + BATCH]:
                    encoded = path.read_bytes()
                    size = _checked_size(path, encoded, size)
                    image = {"bytes": encoded, "path": path.relative_to(source).as_posix()}
                    rows.append({"image": image, "label": classes.index(label) if label else None})
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _checked_size(path: Path, encoded: bytes, size: tuple[int, ...]) -> tuple[int, ...]:
    """The image's size (height, width), which must be that of the images before it."""
    try:
        found = decode_image(encoded)[0].shape[1:]
    except UNREADABLE as error:
        raise DataError(f"{path} is not a readable image: {why_unreadable(error)}") from error
    if size and found != size:
        raise DataError(
            f"{path} is {found[1]}×{found[0]} pixels and the images before it are {size[1]}×{size[0]}: "
            "all images of a set must have one size"
        )
    return found
