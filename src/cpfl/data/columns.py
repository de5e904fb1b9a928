"""Files of named columns, one value or one array for each sample: csv, npz and parquet.

Nothing is guessed and nothing is filled: a missing value is refused with its column and row. No pickle is read.
"""

import math
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cpfl.data import parquet
from cpfl.data.limit import as_text, check_size
from cpfl.data.samples import Array
from cpfl.errors import DataError, first_line

SUFFIXES = (".csv", ".npz", ".parquet")
INDEX = re.compile(r"(__index_level_\d+__|Unnamed: 0)?")  # what pandas calls the numbers of rows that it writes
CSV_GROWTH = 8  # bytes in memory for one in the file, at most: a digit and its comma become a number

Columns = dict[str, Array]
"""Values of all samples by the name of their column."""


def read(files: Sequence[Path], only: Collection[str] = ()) -> Columns:
    """The columns of files that belong together, one after the other; all of them, or those that are named."""
    parts = [_read(file, only) for file in files]
    for file, part in zip(files[1:], parts[1:], strict=True):
        if list(part) != list(parts[0]):
            raise DataError(
                f"{file} has the columns {', '.join(part)}, and {files[0].name} {', '.join(parts[0])}: "
                "files of one split have the same columns in the same order"
            )
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise DataError(f"the columns of the files in {files[0].parent} differ: {first_line(error)}") from error


def _read(file: Path, only: Collection[str]) -> Columns:
    every = names(file)
    if file.suffix == ".npz":
        return _npz(file, only)
    if twice := [name for name in every if every.count(name) > 1]:
        raise DataError(f"{file} has {every.count(twice[0])} columns '{twice[0]}': one is allowed")
    chosen = [name for name in every if not only or name in only]
    table = _csv(file, chosen) if file.suffix == ".csv" else parquet.read_table(file, chosen)
    return {name: _values(table.column(name), f"column '{name}' of {file}") for name in chosen}


def is_index(name: str) -> bool:
    """Whether a column holds the numbers of a pandas frame's rows, which are no inputs; one without a name does."""
    return INDEX.fullmatch(name) is not None


def names(file: Path) -> list[str]:
    """The names of a file's columns; their values are not read."""
    if not file.is_file():
        raise DataError(f"{file} is not a file: a {file.suffix} file is expected there")
    if file.suffix == ".parquet":
        return parquet.column_names(file)
    try:
        if file.suffix == ".npz":
            with zipfile.ZipFile(file) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        with csv.open_csv(file) as opened:
            return list(opened.schema.names)
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"{file} is damaged or no {file.suffix} file with names: {first_line(error)}") from error


def _csv(file: Path, chosen: Sequence[str]) -> pa.Table:
    check_size(file, CSV_GROWTH * file.stat().st_size)
    try:
        return csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=chosen))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file} is damaged or not a csv file with a line of names: {first_line(error)}") from error


def _npz(file: Path, only: Collection[str]) -> Columns:
    """Arrays by name. Their sizes are read first: a small file can unpack to more than a machine has."""
    found: Columns = {}
    try:
        check_size(file, sum(_npz_sizes(file)))
        with np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                if not only or name in only:
                    found[name] = _checked(np.asarray(stored[name]), f"array '{name}' of {file}")
    except DataError:
        raise
    except Exception as error:  # a damaged archive makes numpy and zipfile fail in many ways
        raise DataError(f"{file} is damaged, no npz file or holds Python objects: {first_line(error)}") from error
    if len(set(map(len, found.values()))) > 1:
        sizes = ", ".join(f"{name} {len(values)}" for name, values in found.items())
        raise DataError(f"the arrays of {file} have different numbers of samples: {sizes}")
    return found


def _npz_sizes(file: Path) -> Iterator[int]:
    """The bytes that every array takes, by its header and by what the archive says of it."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            yield max(member.file_size, math.prod(npy_header(archive, member.filename)))


def npy_header(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """An array's shape, and after it the bytes of one number; nothing of the array is read."""
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
    return (*shape, dtype.itemsize)


def _values(column: pa.ChunkedArray, what: str) -> Array:
    """A column as an array: numbers, truth values, texts, or lists of numbers that are all of one length."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not len(column):
        raise DataError(f"{what} holds nothing: the table has no rows")
    if column.null_count:
        _missing(what, int(pc.index(column.is_null(), True).as_py()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return as_text(what, column.to_pylist())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _checked(column.cast(kind).to_numpy(), what)
    if _is_list(kind):
        return _checked(_stacked(column, what), what)
    raise DataError(
        f"{what} holds {kind}: numbers, texts, or lists of numbers of one length are allowed (images are read from a "
        "column called image or img)"
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _stacked(column: pa.ChunkedArray, what: str) -> Array:
    shape, values = [len(column)], column.combine_chunks()
    while _is_list(values.type):
        if values.null_count:
            raise DataError(f"{what} has a list in which a value is missing: fill it, or leave the row out")
        lengths = pc.unique(pc.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            raise DataError(f"{what} has lists of {min(lengths)} to {max(lengths)} values: all must have one length")
        shape += lengths
        values = values.flatten()
    if values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        found = "a list in which a value is missing" if values.null_count else f"lists of {values.type}"
        raise DataError(f"{what} has {found}: lists of numbers without gaps are allowed")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def _checked(values: Array, what: str) -> Array:
    """Numbers, truth values or texts, one entry for each sample; none of them missing."""
    if values.ndim == 0:
        raise DataError(f"{what} is a single value: one for each sample is needed")
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")  # type: ignore[arg-type]
    if values.dtype.kind not in "biufU":
        raise DataError(f"{what} holds {values.dtype}: numbers, truth values or texts are allowed")
    if values.dtype.kind == "f":
        numbers: Any = values
        finite = np.isfinite(numbers).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            _missing(what, int(np.argmin(finite)))
    return values


def _missing(what: str, row: int) -> None:
    raise DataError(f"{what} has no finite value in row {row + 1}: fill it, or leave the row out")
