"""Image sets in the layout of a Hugging Face snapshot: `<split>-<k>-of-<n>.parquet`.

The image column holds encoded images, {bytes, path} or plain binary; the label column holds class numbers or names.
Every other scalar column (a writer's id, say) is kept beside the samples, so that a split can go by it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from cpfl.data.decoded import cached
from cpfl.data.images import UNREADABLE, open_image
from cpfl.data.samples import Array, Samples
from cpfl.errors import DataError

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "character")
# Where a snapshot keeps its shards. The last two are what the hub's own cifar10 and svhn call theirs.
FOLDERS = (".", "data", "plain_text", "cropped_digits")
SHARD = re.compile(r"(?P<split>.+)-(?P<part>\d+)-of-(?P<parts>\d+)(-[0-9a-f]+)?\.parquet")
# What Pillow calls the pixels, and what becomes of them: one grey channel or three colours, eight bits each.
GREY, COLOUR = "L", "RGB"
PIXELS = {"1": GREY, "L": GREY, "LA": GREY, "RGB": COLOUR, "RGBA": COLOUR, "P": COLOUR, "CMYK": COLOUR, "YCbCr": COLOUR}


def splits(folder: Path) -> list[str]:
    """The splits that the folder holds shards of."""
    return sorted(_shards(folder))


def read(folder: Path, split: str) -> Samples | None:
    """One split, or None where the folder has no shard of it."""
    shards = _shards(folder)
    if split not in shards:
        return None
    files = shards[split]
    _expect_all(split, files)
    image, label = _columns(files[0])
    x = cached(files, lambda: _decode(files, image))
    columns = _scalars(files)
    y = None
    if label is not None:
        del columns[label]
        every_file = [file for several in shards.values() for file in several]
        y = _labels(files, label, every_file)
    return Samples(x, y, columns)


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Every split's files, in order, from the first subfolder that has any."""
    for place in FOLDERS:
        found: dict[str, list[Path]] = {}
        for file in sorted((folder / place).glob("*.parquet")):
            if match := SHARD.fullmatch(file.name):
                found.setdefault(match["split"], []).append(file)
        if found:
            return found
    return {}


def _expect_all(split: str, files: Sequence[Path]) -> None:
    """A split whose shards are not all there would quietly be a smaller one."""
    names = [match for file in files if (match := SHARD.fullmatch(file.name))]
    parts = int(names[0]["parts"])
    found = [int(name["part"]) for name in names]
    if missing := sorted(set(range(parts)) - set(found)):
        raise DataError(
            f"{files[0].parent} has {len(found)} of the {parts} files of split '{split}': "
            f"{split}-{missing[0]:05d}-of-{parts:05d}.parquet is missing"
        )
    if len(found) > parts:
        raise DataError(
            f"{files[0].parent} has {len(found)} files of split '{split}' where {files[0].name} tells of {parts}: "
            "only one snapshot may lie there"
        )


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is damaged or not a parquet file: {error}") from error


def _read_columns(file: Path, names: Sequence[str]) -> pa.Table:
    with _open(file) as opened:
        try:
            return opened.read(columns=list(names))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged: {error}") from error


def _columns(file: Path) -> tuple[str, str | None]:
    """The names of the image column and, where there is one, the label column."""
    with _open(file) as opened:
        names = opened.schema_arrow.names
    image = next((name for name in IMAGE_COLUMNS if name in names), None)
    if image is None:
        raise DataError(
            f"{file} has no image column: it has {', '.join(names)}; allowed are {' and '.join(IMAGE_COLUMNS)}"
        )
    return image, next((name for name in LABEL_COLUMNS if name in names), None)


def _decode(files: Sequence[Path], column: str) -> NDArray[np.uint8]:
    """All images of these files, (N, C, H, W). Grey ones become colour where any other is.

    One thread: at 32×32 the work is Python's own, and two threads measured a third slower than one.
    """
    counts = []
    for file in files:
        with _open(file) as opened:
            counts.append(opened.metadata.num_rows)
    if not sum(counts):
        raise DataError(f"{files[0]} holds no images: at least one row is needed")
    out: NDArray[np.uint8] | None = None
    # Naming the format spares Pillow from trying each one it knows: this halves the time for WebP.
    format_: str | None = None
    position = 0
    for file in files:
        for row, encoded in enumerate(_encoded(file, column)):
            if encoded is None:
                raise DataError(f"row {row} of {file} has no image bytes in column '{column}'")
            try:
                pixels, format_ = _pixels(encoded, format_)
            except UNREADABLE as error:
                raise DataError(f"row {row} of {file} is not a readable image: {error}") from error
            if out is None:
                out = np.empty((sum(counts), *pixels.shape), dtype=np.uint8)
            if pixels.shape[1:] != out.shape[2:]:
                raise DataError(
                    f"row {row} of {file} is {pixels.shape[2]}×{pixels.shape[1]} pixels and the first image is "
                    f"{out.shape[3]}×{out.shape[2]}: all images of a set must have one size"
                )
            if len(pixels) > out.shape[1]:
                out = np.repeat(out, len(pixels), axis=1)
            out[position] = pixels
            position += 1
    assert out is not None
    return out


def _encoded(file: Path, column: str) -> Iterator[bytes | None]:
    """The encoded images of one file, a batch of rows in memory at a time."""
    with _open(file) as opened:
        type_ = opened.schema_arrow.field(column).type
        if pa.types.is_struct(type_):
            if type_.get_field_index("bytes") < 0:
                raise DataError(f"column '{column}' of {file} is {type_}: a struct with bytes, or binary, is allowed")
        elif not (pa.types.is_binary(type_) or pa.types.is_large_binary(type_)):
            raise DataError(f"column '{column}' of {file} is {type_}: a struct with bytes, or binary, is allowed")
        try:
            for batch in opened.iter_batches(batch_size=2048, columns=[column]):
                array = batch.column(0)
                yield from (array.field("bytes") if pa.types.is_struct(type_) else array).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} is damaged: {error}") from error


def class_names(folder: Path) -> list[str] | None:
    """What the labels are called, where the files say so in the hub's way."""
    for file in _shards(folder).get("train", [])[:1]:
        try:
            told = json.loads((pq.read_schema(file).metadata or {}).get(b"huggingface", b"{}"))
            for label in LABEL_COLUMNS:
                names = told["info"]["features"].get(label, {}).get("names")
                if isinstance(names, list) and all(isinstance(name, str) for name in names):
                    return names
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # names are a courtesy: whatever is wrong with them is no reason to fail
    return None


def _pixels(encoded: bytes, format_: str | None) -> tuple[NDArray[np.uint8], str | None]:
    """One image, channels first, and the format it turned out to have."""
    try:
        image = open_image(io.BytesIO(encoded), format_)
    except UnidentifiedImageError:
        image = open_image(io.BytesIO(encoded))
    found = image.format
    mode = PIXELS.get(image.mode)
    if mode is None:
        raise ValueError(f"its pixels are {image.mode}, and {', '.join(PIXELS)} are allowed")
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return (pixels[None] if mode == GREY else pixels.transpose(2, 0, 1)), found


def _scalars(files: Sequence[Path]) -> dict[str, Array]:
    """Every column of numbers, truth values or text."""
    with _open(files[0]) as opened:
        schema = opened.schema_arrow
    names = [field.name for field in schema if _is_scalar(field.type)]
    tables = [_read_columns(file, names) for file in files]
    joined = pa.concat_tables(tables, promote_options="permissive")
    return {name: _values(joined.column(name)) for name in names}


def _is_scalar(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    kinds = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
    )
    return any(kind(type_) for kind in kinds)


def _values(column: pa.ChunkedArray) -> Array:
    values: Array = column.to_numpy()
    if values.dtype != object:
        return values
    # Text, or truth values with gaps: fixed-width text can be compared, sorted and saved without pickle.
    return np.asarray(["" if value is None else str(value) for value in values], dtype=np.str_)


def _labels(files: Sequence[Path], column: str, every_file: Sequence[Path]) -> NDArray[np.int64] | None:
    """Class numbers. Names are numbered in sorted order over all splits, so that train and test agree."""
    given = pa.concat_tables([_read_columns(file, [column]) for file in files], promote_options="permissive")
    if given.column(0).null_count:
        raise DataError(f"column '{column}' of {files[0].parent} has {given.column(0).null_count} rows without a label")
    values = _values(given.column(0))
    if np.issubdtype(values.dtype, np.integer):
        numbers = values.astype(np.int64)
        if len(numbers) and (numbers == -1).all():  # the hub's sign for a split whose labels are withheld
            return None
        if len(numbers) and numbers.min() < 0:
            raise DataError(f"column '{column}' of {files[0].parent} has label {numbers.min()}: 0 and up are allowed")
        return numbers
    if values.dtype.kind != "U":
        raise DataError(f"column '{column}' of {files[0].parent} holds {values.dtype}: integers or text are allowed")
    tables = [_read_columns(file, [column]) for file in every_file if column in _open_names(file)]
    names = np.unique(np.concatenate([_values(table.column(0)) for table in tables]))
    return np.searchsorted(names, values).astype(np.int64)


def _open_names(file: Path) -> list[str]:
    with _open(file) as opened:
        return list(opened.schema_arrow.names)
