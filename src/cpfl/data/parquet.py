"""Image sets in the layout of a Hugging Face snapshot: `<split>-<k>-of-<n>.parquet`.

The image column holds encoded images, {bytes, path} or plain binary; the label column holds class numbers or names.
Every other scalar column (a writer's id, say) is kept beside the samples, so that a split can use it.

Decoded images are kept as .npy in the user's cache folder: a set is decoded once and memory-mapped from then on.
The cache must not break a run: one that is missing, damaged, read-only or on a full disk is as good as none.
"""

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from cpfl.data.catalogue import cache_folder, file_digest
from cpfl.data.samples import Array, Samples
from cpfl.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Raster formats that Pillow decodes by itself: others, such as EPS, would start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are no images, damaged, or far too large."""
DECODER = "1"  # part of every cache key: raise it when the decoder's output changes

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


def read(folder: Path, split: str) -> Samples | None:
    """One split, or None where the folder has no shard of it."""
    shards = _shards(folder)
    if split not in shards:
        return None
    files = shards[split]
    _check_complete(split, files)
    with _opened(files[0]) as first:
        schema = first.schema_arrow
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if image is None:
        raise DataError(
            f"{files[0]} has no image column: it has {', '.join(schema.names)}; "
            f"allowed are {' and '.join(IMAGE_COLUMNS)}"
        )
    table = _read_columns(files, [field.name for field in schema if _is_scalar(field.type)])
    x = cached(files, lambda: _decode(files, image))
    y = None if label is None else _labels(table, schema.field(label), shards, split)
    return Samples(x, y, {name: _values(table.column(name)) for name in table.column_names if name != label})


def class_names(folder: Path) -> list[str]:
    """What the labels are called, where the files say so in the hub's way; else an empty list."""
    # Names are a courtesy: whatever is wrong with them is no reason to fail.
    with suppress(pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError):
        metadata = json.loads(pq.read_schema(_shards(folder)["train"][0]).metadata[b"huggingface"])
        for label in LABEL_COLUMNS:
            names = metadata["info"]["features"].get(label, {}).get("names")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
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


def _check_complete(split: str, files: Sequence[Path]) -> None:
    """A split with a missing shard would silently be a smaller one."""
    names = [match for file in files if (match := SHARD.fullmatch(file.name))]
    parts, found = int(names[0]["parts"]), [int(name["part"]) for name in names]
    if missing := sorted(set(range(parts)) - set(found)):
        raise DataError(
            f"{files[0].parent} has {len(found)} of the {parts} files of split '{split}': "
            f"{split}-{missing[0]:05d}-of-{parts:05d}.parquet is missing"
        )
    if len(found) > parts:
        raise DataError(
            f"{files[0].parent} has {len(found)} files of split '{split}' where {files[0].name} announces {parts}: "
            "only one snapshot may lie there"
        )


@contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(file) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is damaged or not a parquet file: {error}") from error


def _read_columns(files: Sequence[Path], names: Sequence[str]) -> pa.Table:
    """These columns of all files; a file without any of them is left out."""
    tables = []
    for file in files:
        with _opened(file) as opened:
            if not names or set(names) & set(opened.schema_arrow.names):
                tables.append(opened.read(columns=list(names)))
    return pa.concat_tables(tables, promote_options="permissive")


def cached(files: Sequence[Path], decode: Callable[[], Array]) -> Array:
    """What `decode` makes of these files: from the cache if it holds them whole, else decoded and cached."""
    contents = [f"\n{file.name} {file.stat().st_size} {file_digest(file)}" for file in files]
    key = hashlib.sha256("".join([DECODER, *contents]).encode()).hexdigest()
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
        with tempfile.TemporaryDirectory(dir=images.parent, prefix="partial-") as scratch:
            partial = Path(scratch) / images.name
            np.save(partial, decoded, allow_pickle=False)
            digest = file_digest(partial)
            partial.replace(images)
            partial.write_text(digest)
            partial.replace(checksum)
    return decoded


def _decode(files: Sequence[Path], column: str) -> NDArray[np.uint8]:
    """All images of these files, (N, C, H, W). Grey ones become colour where any other is.

    One thread: at 32×32 the work is Python's own, and two threads measured a third slower than one.
    """
    count = sum(pq.read_metadata(file).num_rows for file in files)
    if not count:
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
                pixels, format_ = decode_image(encoded, format_)
            except UNREADABLE as error:
                raise DataError(f"row {row} of {file} is not a readable image: {error}") from error
            if out is None:
                out = np.empty((count, *pixels.shape), dtype=np.uint8)
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
    with _opened(file) as opened:
        type_ = opened.schema_arrow.field(column).type
        struct = pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0
        if not (struct or pa.types.is_binary(type_) or pa.types.is_large_binary(type_)):
            raise DataError(f"column '{column}' of {file} is {type_}: a struct with bytes, or binary, is allowed")
        for batch in opened.iter_batches(batch_size=2048, columns=[column]):
            array = batch.column(0)
            yield from (array.field("bytes") if struct else array).to_pylist()


def open_image(source: Path | IO[bytes], format_: str | None = None) -> Image.Image:
    """An image of an allowed format; a known format saves the guessing."""
    return Image.open(source, formats=FORMATS if format_ is None else [format_])


def decode_image(encoded: bytes, format_: str | None = None) -> tuple[NDArray[np.uint8], str | None]:
    """One image, channels first, and the format it turned out to have, which may not be the one expected."""
    try:
        image = open_image(io.BytesIO(encoded), format_)
    except UnidentifiedImageError:
        image = open_image(io.BytesIO(encoded))
    mode = PIXELS.get(image.mode)
    if mode is None:
        raise ValueError(f"its pixels are {image.mode}, and {', '.join(PIXELS)} are allowed")
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return (pixels[None] if mode == GREY else pixels.transpose(2, 0, 1)), image.format


def _is_scalar(type_: pa.DataType) -> bool:
    """Whether it is a number, a truth value or text."""
    return any(kind(type_.value_type if pa.types.is_dictionary(type_) else type_) for kind in SCALARS)


def _values(column: pa.ChunkedArray) -> Array:
    values: Array = column.to_numpy()
    if values.dtype != object:
        return values
    # Text, or truth values with gaps: fixed-width text can be compared, sorted and saved without pickle.
    return np.asarray(["" if value is None else str(value) for value in values], dtype=np.str_)


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
    values = _values(column)
    if values.dtype.kind == "U":
        every_file = [file for files in shards.values() for file in files]
        return np.searchsorted(np.unique(_values(_read_columns(every_file, [field.name]).column(0))), values)
    if values.dtype.kind not in "iu":
        raise DataError(f"{where} holds {values.dtype}: integers or text are allowed")
    if (values == -1).all():
        return None
    if values.min() < 0:
        raise DataError(f"{where} has label {values.min()}: 0 and up are allowed")
    return values.astype(np.int64)
