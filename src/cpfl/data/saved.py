"""Folders that Hugging Face's `save_to_disk` writes: Arrow streams, with a state.json that lists them.

They are read with pyarrow alone. A folder of several splits has a dataset_dict.json and a folder for each split; a
folder of one data set is a training set.
"""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from cpfl.data.frames import arrow_columns
from cpfl.data.given import as_samples
from cpfl.data.given_columns import as_column, assembled, label_columns, roles, unlabelled_roles
from cpfl.data.limit import check_size
from cpfl.data.parquet import UNREADABLE, cached, open_image
from cpfl.data.samples import Array, Samples
from cpfl.data.tables import Roles
from cpfl.errors import DataError, first_line
from cpfl.user_files import check_readable

SPLITS, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream that is whole; without it, one that was cut would only be shorter


def splits(folder: Path) -> list[str]:
    """The splits of a folder; none where it is no such folder."""
    if (folder / STATE).is_file():
        return ["train"]
    if not (folder / SPLITS).is_file():
        return []
    return [one.parent.name for one in sorted(folder.glob(f"*/{STATE}"))]


def read(folder: Path, split: str, named: Roles, limit: int = 0, *, labelled: bool = True) -> Samples | None:
    """One split, or None where the folder has none of it; with a limit the first so many samples."""
    if split not in splits(folder):
        return None
    where = _part(folder, split)
    table, files = _table(where)
    table = table[:limit] if limit else table
    images = [field.name for field in table.schema if _holds_images(field.type)]
    try:
        columns = arrow_columns(table.drop_columns(images))
        for name in images:
            encoded = table.column(name)
            columns[name] = cached(files, partial(_decoded, encoded, name), limit, name)
        columns = {name: columns[name] for name in table.column_names}
        known = roles(columns, named.ids, named.label) if labelled else unlabelled_roles(columns, named.ids)
        part = assembled(columns, known, named.ids)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    y = part.y
    if y is not None and y.dtype == object:
        y = np.searchsorted(np.array(class_names(folder, named)), y.astype(str))
    elif y is not None and len(y) and (y == -1).all():  # what the hub writes where labels are withheld
        y = None
    return replace(as_samples(part.x, y, dict(part.ids)), names=known.inputs if known.one_table else ())


def class_names(folder: Path, named: Roles) -> list[str]:
    """What the labels are called: as the folder says it, else the texts of all splits; empty where they are numbers."""
    texts = set[str]()
    for split in splits(folder):
        where = _part(folder, split)
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            features = _json(where / INFO)["features"]
            names = features[named.label or label_columns(features, named.ids)[0]].get("names")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                return names
        table, _ = _table(where)
        label = [named.label] if named.label else label_columns(table.column_names, named.ids)
        for column in arrow_columns(table.select([name for name in label[:1] if name in table.column_names])).values():
            texts |= {str(value) for value in column if value is not None} if column.dtype == object else set()
    return sorted(texts)


def _part(folder: Path, split: str) -> Path:
    return folder if (folder / STATE).is_file() else folder / split


def _table(folder: Path) -> tuple[pa.Table, list[Path]]:
    """All rows of a split, and the files that hold them."""
    try:
        names = [str(entry["filename"]) for entry in _json(folder / STATE)["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{folder / STATE} does not list the files of a data set: {first_line(error)}") from error
    if strange := [name for name in names if Path(name).name != name or not name.endswith(".arrow")]:
        raise DataError(
            f"{folder / STATE} names {strange[0]!r}: files of its own folder that end with .arrow are allowed"
        )
    if not names:
        raise DataError(f"{folder / STATE} names no files: at least one is needed")
    files = [folder / name for name in names]
    try:
        return pa.concat_tables([pa.Table.from_batches(*_batches(file)) for file in files]), files
    except pa.ArrowException as error:
        raise DataError(f"the columns of the files in {folder} differ: {first_line(error)}") from error


def _json(file: Path) -> Any:
    check_readable(file)
    return json.loads(file.read_text(encoding="utf-8"))


def _batches(file: Path) -> tuple[list[pa.RecordBatch], pa.Schema]:
    """The rows of one file, whose parts may unpack to more than the file has."""
    batches, size = list[pa.RecordBatch](), 0
    try:
        check_readable(file, sys.maxsize)  # rows count, by check_size
        with pa.ipc.open_stream(pa.memory_map(str(file))) as stream:
            for batch in stream:
                size += batch.nbytes
                check_size(file, size)
                batch.validate(full=True)
                batches.append(batch)
            schema = stream.schema
        with file.open("rb") as raw:
            raw.seek(-len(END), os.SEEK_END)
            if raw.read() != END:
                raise ValueError("its end is missing")
        return batches, schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file} is missing, damaged or no Arrow stream: {first_line(error)}") from error


def _holds_images(type_: pa.DataType) -> bool:
    """Whether its values are encoded images, {bytes, path}."""
    return pa.types.is_struct(type_) and {field.name for field in type_} == {"bytes", "path"}


def _decoded(column: pa.ChunkedArray, name: str) -> Array:
    return as_column(_images(column, name), name)


def _images(column: pa.ChunkedArray, name: str) -> Iterator[Image.Image]:
    """Images that are decoded when their pixels are taken."""
    row = 0
    for chunk in column.chunks:
        for encoded in chunk.field("bytes"):
            if not encoded.is_valid:
                raise DataError(f"row {row} of the column {name!r} has no image: paths to other files are not followed")
            try:
                yield open_image(io.BytesIO(encoded.as_py()))
            except UNREADABLE as error:
                raise DataError(
                    f"row {row} of the column {name!r} is no readable image: {first_line(error)}"
                ) from error
            row += 1
