"""Image sets in the layout of a Hugging Face snapshot: `<split>-<k>-of-<n>.parquet`.

The image column holds encoded images, {bytes, path} or plain binary; the label column holds class numbers or names.
Every other scalar column (a writer's id, say) is kept beside the samples, so that a split can use it.

Decoded images are kept as .npy in the user's cache folder: a set is decoded once and memory-mapped from then on.
The cache must not break a run: one that is missing, damaged, read-only or on a full disk is as good as none.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from cpfl.data.catalogue import cache_folder, file_digest
from cpfl.data.limit import as_text, check_size
from cpfl.data.samples import Array, Samples
from cpfl.errors import DataError, first_line
from cpfl.scratch import scratch_folder

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Raster formats that Pillow decodes by itself: others, such as EPS, would start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are no images, damaged, or far too large."""
DECODER = "1"  # part of every cache key: raise it when the decoder's output changes

BATCH = 32  # encoded images in memory at a time; each can be as large as its file is when it is unpacked

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "character")
# Where a snapshot keeps its shards. The last two are what the hub's own cifar10 and svhn call theirs.
FOLDERS = (".", "data", "plain_text", "cropped_digits")
SHARD = re.compile(r"(?P<split>.+)-(?P<part>\d+)-of-(?P<parts>\d+)(-[0-9a-f]+)?\.parquet")
# Pillow's pixel modes, and what they become: one grey channel or three colours, eight bits each.
GREY, COLOUR = "L", "RGB"
PIXELS = {"1": GREY, "L": GREY, "LA": GREY, "RGB": COLOUR, "RGBA": COLOUR, "P": COLOUR, "CMYK": COLOUR, "YCbCr": COLOUR}
SCALARS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)


def splits(folder: Path) -> list[str]:
    """The splits that the folder holds shards of."""
    return sorted(_shards(folder))


def has_images(folder: Path) -> bool:
    """Whether the files hold images, or cannot be read; others are tables."""
    for files in _shards(folder).values():
        if not files[0].is_file():  # opening a pipe would wait
            return True
        with suppress(DataError), _opened(files[0]) as first:
            return any(name in first.schema_arrow.names for name in IMAGE_COLUMNS)
    return True


def column_names(file: Path) -> list[str]:
    """What the columns of a file are called."""
    _check_unpacked([file])
    with _opened(file) as opened:
        return list(opened.schema_arrow.names)


def read_table(file: Path, names: Sequence[str]) -> pa.Table:
    """Some columns of a file, as large as is allowed."""
    _check_unpacked([file])
    return _read_columns([file], names)


def read(folder: Path, split: str, limit: int = 0) -> Samples | None:
    """One split, or None where the folder has no shard of it; with a limit the first so many samples."""
    shards = _shards(folder)
    if split not in shards:
        return None
    files = shards[split]
    check_complete(split, files)
    _check_unpacked(files)
    with _opened(files[0]) as first:
        schema = first.schema_arrow
    for name in (*IMAGE_COLUMNS, *LABEL_COLUMNS):
        if schema.names.count(name) > 1:
            raise DataError(f"{files[0]} has {schema.names.count(name)} columns '{name}': one is allowed")
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if image is None:
        raise DataError(
            f"{files[0]} has no image column: it has {', '.join(schema.names)}; "
            f"allowed are {' and '.join(IMAGE_COLUMNS)}"
        )
    table = _read_columns(files, [field.name for field in schema if _is_scalar(field.type)])
    x = cached(files, lambda: _decode(files, image, limit), limit)
    y = None if label is None else _labels(table, schema.field(label), shards, split)
    others = [name for name in table.column_names if name != label and schema.names.count(name) == 1]
    where, kept = files[0].parent, slice(limit or None)
    columns = {name: _values(table.column(name), f"column '{name}' of {where}")[kept] for name in others}
    return Samples(x, None if y is None else y[kept], columns)


def class_names(folder: Path) -> list[str]:
    """What the labels are called, where the files say so in the hub's way; else an empty list."""
    # Names are a courtesy: whatever is wrong with them is no reason to fail.
    with suppress(pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        metadata = json.loads(pq.read_schema(_shards(folder)["train"][0]).metadata[b"huggingface"])
        for label in LABEL_COLUMNS:
            names = metadata["info"]["features"].get(label, {}).get("names")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                "".join(names).encode()  # a lone surrogate is no text
                return names
    return []


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Every split's files, in order, from the first subfolder that has any."""
    for subfolder in FOLDERS:
        found: dict[str, list[Path]] = {}
        for file in sorted((folder / subfolder).glob("*.parquet")):
            if match := SHARD.fullmatch(file.name):
                found.setdefault(match["split"], []).append(file)
        if found:
            return found
    return {}


def check_complete(split: str, files: Sequence[Path]) -> None:
    """A split with a missing shard would silently be a smaller one; names that announce no number are not checked."""
    names = [match for file in files if (match := SHARD.fullmatch(file.name))]
    if len(names) < len(files):
        return
    parts, found = int(names[0]["parts"]), [int(name["part"]) for name in names]
    missing = next((part for part in range(parts) if part not in set(found)), None)
    if missing is not None:
        raise DataError(
            f"{files[0].parent} has {len(found)} of the {parts} files of split '{split}': "
            f"{split}-{missing:05d}-of-{parts:05d}.parquet is missing"
        )
    if len(found) > parts:
        raise DataError(
            f"{files[0].parent} has {len(found)} files of split '{split}' where {files[0].name} announces {parts}: "
            "only one snapshot may lie there"
        )


def _check_unpacked(files: Sequence[Path]) -> None:
    """Refuse files that are small and unpack to more than is allowed, by what they say of themselves."""
    size = rows = 0
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not a file: a parquet file is expected there")
        with _opened(file) as opened:
            groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
            size += sum(group.total_byte_size for group in groups)
            rows += opened.metadata.num_rows
            check_size(file.parent, max(size, 8 * rows))


@contextmanager
def _opened(file: Path, unrepeated: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """A file; values of the `unrepeated` columns of text are in memory once, however many rows have them."""
    try:
        with pq.ParquetFile(file, read_dictionary=list(unrepeated)) as opened:
            yield opened
    except (pa.ArrowException, OSError, ValueError) as error:  # a path that is no text is a ValueError
        raise DataError(f"{file} is damaged or not a parquet file: {first_line(error)}") from error


def _read_columns(files: Sequence[Path], names: Sequence[str]) -> pa.Table:
    """These columns of all files; a file without any of them is left out."""
    tables = []
    for file in files:
        with _opened(file) as opened:
            schema = opened.schema_arrow
        text = [field.name for field in schema if field.name in names and pa.types.is_string(field.type)]
        with _opened(file, text) as opened:
            if not names or set(names) & set(schema.names):
                tables.append(opened.read(columns=list(names)))
                tables[-1].validate(full=True)  # a damaged row may name a value that there is not
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"the columns of the files in {files[0].parent} differ: {first_line(error)}") from error


def cached(files: Sequence[Path], decode: Callable[[], Array], limit: int = 0, column: str = "") -> Array:
    """What `decode` makes of these files, of their first rows or of one column, which is kept for the next time."""
    contents = "".join([DECODER, *(f"\n{file.name} {file.stat().st_size} {file_digest(file)}" for file in files)])
    # The first rows have an entry of their own: in the whole set's they may be colour because of later ones.
    part = (f"\nfirst {limit}" if limit else "") + (f"\ncolumn {column}" if column else "")
    key = hashlib.sha256(os.fsencode(contents + part)).hexdigest()
    images = cache_folder() / "decoded" / f"{key}.npy"
    checksum = images.with_suffix(".sha256")
    with suppress(OSError, ValueError):
        if file_digest(images) == checksum.read_text().strip():
            # Copy on write: callers get an array like any other, and the file stays as it is.
            return np.asarray(np.load(images, mmap_mode="c", allow_pickle=False))
    decoded = decode()
    with suppress(OSError):
        images.parent.mkdir(parents=True, exist_ok=True)
        # Both files appear whole or not at all. A crash between the two leaves images without a checksum: no entry.
        with scratch_folder(images.parent, "partial-") as scratch:
            partial = scratch / images.name
            np.save(partial, decoded, allow_pickle=False)
            digest = file_digest(partial)
            partial.replace(images)
            partial.write_text(digest)
            partial.replace(checksum)
    return decoded


def _decode(files: Sequence[Path], column: str, limit: int) -> NDArray[np.uint8]:
    """The images of these files, (N, C, H, W), or the first so many. Grey ones become colour where any other is.

    One thread: at 32×32 the work is Python's own, and two threads measured a third slower than one.
    """
    count = sum(pq.read_metadata(file).num_rows for file in files)
    if not count:
        raise DataError(f"{files[0]} holds no images: at least one row is needed")
    count = min(count, limit or count)
    out: NDArray[np.uint8] | None = None
    # Naming the format spares Pillow from trying each one it knows: this halves the time for WebP.
    format_: str | None = None
    position = 0
    for file in files:
        for row, encoded in enumerate(islice(_encoded(file, column), count - position)):
            if encoded is None:
                raise DataError(f"row {row} of {file} has no image bytes in column '{column}'")
            try:
                pixels, format_ = decode_image(encoded, format_)
            except UNREADABLE as error:
                raise DataError(f"row {row} of {file} is not a readable image: {why_unreadable(error)}") from error
            if out is None:
                check_size(file.parent, count * pixels.size)
                out = np.empty((count, *pixels.shape), dtype=np.uint8)
            if pixels.shape[1:] != out.shape[2:]:
                raise DataError(
                    f"row {row} of {file} is {pixels.shape[2]}×{pixels.shape[1]} pixels and the first image is "
                    f"{out.shape[3]}×{out.shape[2]}: all images of a set must have one size"
                )
            if len(pixels) > out.shape[1]:
                check_size(file.parent, len(pixels) * out.size)
                out = np.repeat(out, len(pixels), axis=1)
            out[position] = pixels
            position += 1
    assert out is not None
    return out


def _encoded(file: Path, column: str) -> Iterator[bytes | None]:
    """The encoded images of one file, a batch of rows in memory at a time."""
    with _opened(file) as opened:
        type_ = opened.schema_arrow.field(column).type if column in opened.schema_arrow.names else pa.null()
        struct = pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0
        held = type_.field("bytes").type if struct else type_
        if not (pa.types.is_binary(held) or pa.types.is_large_binary(held)):
            raise DataError(f"column '{column}' of {file} is {type_}: a struct with bytes, or binary, is allowed")
        size = 0
        for batch in opened.iter_batches(batch_size=BATCH, columns=[column]):
            array = batch.column(0)
            size += array.nbytes
            check_size(file, size)
            yield from (array.field("bytes") if struct else array).to_pylist()


def why_unreadable(error: Exception) -> str:
    """What Pillow says, unless it only names an object in memory."""
    return "its format is unknown, or it is damaged" if isinstance(error, UnidentifiedImageError) else first_line(error)


def open_image(source: Path | IO[bytes], format_: str | None = None) -> Image.Image:
    """An image of an allowed format; a known format saves the guessing."""
    return Image.open(source, formats=FORMATS if format_ is None else [format_])


def decode_image(encoded: bytes, format_: str | None = None) -> tuple[NDArray[np.uint8], str | None]:
    """One image, channels first, and the format it turned out to have, which may not be the one expected."""
    try:
        image = open_image(io.BytesIO(encoded), format_)
    except UnidentifiedImageError:
        image = open_image(io.BytesIO(encoded))
    return pixels_of(image), image.format


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels of an image, channels first: one grey channel or three colours."""
    mode = PIXELS.get(image.mode)
    if mode is None:
        raise ValueError(f"its pixels are {image.mode}, and {', '.join(PIXELS)} are allowed")
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels[None] if mode == GREY else pixels.transpose(2, 0, 1)


def _is_scalar(type_: pa.DataType) -> bool:
    """Whether it is a number, a truth value or text."""
    return any(kind(type_.value_type if pa.types.is_dictionary(type_) else type_) for kind in SCALARS)


def _values(column: pa.ChunkedArray, what: str) -> Array:
    if pa.types.is_dictionary(column.type):  # whose to_numpy gives a gap another row's value
        longest = max((pc.max(pc.binary_length(one.dictionary)).as_py() or 0 for one in column.chunks), default=0)
        check_size(what, longest * len(column))
        column = column.cast(column.type.value_type)
    values: Array = column.to_numpy()
    if values.dtype != object:
        return values
    return as_text(what, ["" if value is None else str(value) for value in values])  # or truth values with gaps


def _labels(table: pa.Table, field: pa.Field, shards: dict[str, list[Path]], split: str) -> NDArray[np.int64] | None:
    """Class numbers; None where labels are withheld, for which the hub writes -1.

    Names are numbered in sorted order over all splits, so that train and test agree.
    """
    where = f"column '{field.name}' of {shards[split][0].parent}"
    if field.name not in table.column_names:
        raise DataError(f"{where} holds {field.type}: integers or text are allowed")
    column = table.column(field.name)
    if column.null_count:
        raise DataError(f"{where} has {column.null_count} rows without a label")
    values = _values(column, where)
    if values.dtype.kind == "U":
        every_file = [file for files in shards.values() for file in files]
        return np.searchsorted(np.unique(_values(_read_columns(every_file, [field.name]).column(0), where)), values)
    if values.dtype.kind not in "iu":
        raise DataError(f"{where} holds {values.dtype}: integers or text are allowed")
    if (values == -1).all():
        return None
    for value in (values.min(), values.max()):
        if not 0 <= value < 2**63:
            raise DataError(f"{where} has label {value}: 0 and up are allowed, to 2^63 - 1")
    return values.astype(np.int64)
