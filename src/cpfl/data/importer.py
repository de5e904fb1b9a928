"""A folder of image files becomes a set of the user's own, in the same parquet layout that every other set has."""

import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cpfl.data.catalogue import CATALOGUE
from cpfl.data.decoded import UNREADABLE, open_image
from cpfl.data.parquet import PIXELS
from cpfl.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
LAYOUT = "train/<label>/<image> and optionally test/<label>/<image>, or images without label folders"
BATCH = 4096  # images in memory at a time


def import_folder(source: Path, name: str, root: Path) -> Path:
    """Write `<root>/<name>/` from a folder of images, whole or not at all; returns that folder."""
    target = root / name
    _check_name(name, target)
    if not source.is_dir():
        raise DataError(f"{source} is not a folder: {LAYOUT} is expected there")
    found = {"train": _images(source / "train" if (source / "train").is_dir() else source)}
    if (source / "test").is_dir():
        found["test"] = _images(source / "test")
    if not found["train"]:
        raise DataError(f"{source} holds no images ({', '.join(SUFFIXES)}): {LAYOUT} is expected there")
    classes = _classes(found, source)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
            building = Path(temporary) / name
            building.mkdir()
            size: tuple[int, int] | None = None
            for split, images in found.items():
                if images:
                    size = _write(building / f"{split}-00000-of-00001.parquet", images, classes, source, size)
            building.rename(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from error
    return target


def _check_name(name: str, target: Path) -> None:
    if not name or name.startswith((".", "~")) or "/" in name or os.sep in name:
        raise DataError(f"'{name}' cannot be a set's name: a plain folder name is allowed")
    if name in CATALOGUE:
        raise DataError(f"'{name}' is the name of a known set: choose one that is not among {', '.join(CATALOGUE)}")
    if target.exists():
        raise DataError(f"{target} exists already: remove it or choose another name")


def _images(folder: Path) -> list[tuple[Path, str | None]]:
    """Every image and its label: the name of the folder it lies in, or None directly in `folder`."""
    direct = [(file, None) for file in sorted(folder.iterdir()) if _is_image(file)]
    below = [
        (file, label.name)
        for label in sorted(folder.iterdir())
        if label.is_dir() and not label.name.startswith(".")
        for file in sorted(label.rglob("*"))
        if _is_image(file)
    ]
    if direct and below:
        raise DataError(
            f"{folder} holds images both directly ({direct[0][0].name}) and in label folders ({below[0][1]}): "
            "either all images have a label folder or none has"
        )
    return [*direct, *below]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")


def _classes(found: dict[str, list[tuple[Path, str | None]]], source: Path) -> list[str] | None:
    """The label folders of the training images in sorted order, or None where there are none."""
    names = {split: {label for _, label in images if label is not None} for split, images in found.items()}
    if unknown := names.get("test", set()) - names["train"]:
        raise DataError(
            f"{source / 'test'} has the label '{min(unknown)}', which {source / 'train'} has not: "
            f"its labels are {', '.join(sorted(names['train'])) or 'none'}"
        )
    if names["train"] and found.get("test") and not names["test"]:
        raise DataError(f"{source / 'test'} has no label folders while {source / 'train'} has")
    return sorted(names["train"]) or None


def _write(
    file: Path,
    images: list[tuple[Path, str | None]],
    classes: list[str] | None,
    source: Path,
    size: tuple[int, int] | None,
) -> tuple[int, int] | None:
    """Write one split. The images stay as they were encoded; each is decoded once to check that it can be."""
    fields = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())])}
    features: dict[str, object] = {"image": {"_type": "Image"}}  # what the hub's own tools read beside the columns
    if classes is not None:
        fields["label"] = pa.int64()
        features["label"] = {"names": classes, "_type": "ClassLabel"}
    schema = pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, len(images), BATCH):
            rows: list[dict[str, object]] = []
            for path, label in images[start : start + BATCH]:
                size = _readable(path, size)
                image = {"bytes": path.read_bytes(), "path": path.relative_to(source).as_posix()}
                rows.append({"image": image, "label": classes.index(label) if classes and label else None})
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return size


def _readable(path: Path, size: tuple[int, int] | None) -> tuple[int, int]:
    """The image's size, which must be that of the images before it."""
    try:
        with open_image(path) as image:
            image.load()
            mode, found = image.mode, image.size
    except UNREADABLE as error:
        raise DataError(f"{path} is not a readable image: {error}") from error
    if mode not in PIXELS:
        raise DataError(f"{path} has pixels of kind {mode}: {', '.join(PIXELS)} are allowed")
    if size is not None and found != size:
        raise DataError(
            f"{path} is {found[0]}×{found[1]} pixels and the images before it are {size[0]}×{size[1]}: "
            "all images of a set must have one size"
        )
    return found
