"""From columns given in Python to inputs and labels: which one is the label, which are inputs, which are ids.

A column is an array with one entry for each sample: numbers, texts (as objects, None where one is missing), or arrays
of one shape.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from cpfl.data.columns import is_index
from cpfl.data.given import as_array
from cpfl.data.limit import as_text, check_size
from cpfl.data.parquet import UNREADABLE, pixels_of
from cpfl.data.samples import Array
from cpfl.data.tables import LABELS
from cpfl.errors import DataError, first_line, quoted, shortened

NUMBERS = "fiub"  # kinds of numpy's types
ABSENT = ("NAType", "NaTType")  # what pandas writes where there is no value

Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are."""

    label: str  # empty: there is none
    inputs: tuple[str, ...]
    one_table: bool  # the inputs are numbers that lie side by side in one array


@dataclass(frozen=True)
class Part:
    """A set, or a client's part of one: inputs, labels as they come, and id columns."""

    x: Array | dict[str, Array]
    y: Array | None = None
    ids: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.x.values())) if isinstance(self.x, dict) else self.x)


def roles(columns: Columns, ids: Collection[str], label: str = "", inputs: Sequence[str] = ()) -> Roles:
    """What these columns are: as named, else by their names and contents. Those of `ids` are neither.

    Columns of arrays are inputs, each by its name if there are several; else all numbers are one table.
    """
    if not label:
        found = label_columns(columns, ids)
        if len(found) != 1:
            which = f"{listed(found)} could all be the label" if found else f"none is called {', '.join(LABELS)}"
            raise DataError(f"of the columns {listed(columns)}, {which}: name it in data.label")
        (label,) = found
    for name in (label, *inputs):
        if name not in columns:
            raise DataError(f"there is no column {name!r}; the columns are {listed(columns)}")
    return _with_inputs(columns, {label, *ids}, label, inputs)


def unlabelled_roles(columns: Columns, ids: Collection[str]) -> Roles:
    """The same for a set whose labels, if it has any, are not used."""
    return _with_inputs(columns, {*label_columns(columns, ids), *ids}, "", ())


def label_columns(columns: Iterable[str], ids: Collection[str]) -> list[str]:
    """The columns that are called like a label."""
    return [name for name in columns if name in LABELS and name not in ids]


def _with_inputs(columns: Columns, others: Collection[str], label: str, inputs: Sequence[str]) -> Roles:
    rest = [name for name in columns if name not in others and not is_index(name)]
    arrays = [name for name in rest if columns[name].ndim > 1]
    numbers = [name for name in rest if columns[name].ndim == 1 and columns[name].dtype.kind in NUMBERS]
    chosen = tuple(inputs or arrays or numbers)
    if not chosen:
        but = f", none but {listed(others)}" if others else ", none"
        raise DataError(f"of the columns {listed(columns)}{but} holds numbers or arrays for a model")
    return Roles(label, chosen, not inputs and not arrays)


def assembled(columns: Columns, chosen: Roles, ids: Collection[str]) -> Part:
    """Inputs, labels and id columns by their roles. A missing value is refused where one is needed."""
    needed = (*chosen.inputs, *([chosen.label] if chosen.label else []))
    for name in needed:
        if name not in columns:
            raise DataError(f"there is no column {name!r}; the columns are {listed(columns)}")
    for name in (*needed, *(one for one in ids if one in columns)):
        _check_complete(name, columns[name])
    for name in chosen.inputs:
        if columns[name].dtype.kind not in NUMBERS:
            raise DataError(f"the column {name!r} holds {_content(columns[name])}: a model takes numbers")
    x: Array | dict[str, Array] = {name: columns[name] for name in chosen.inputs}
    if chosen.one_table:
        small = all(columns[name].dtype in (np.float16, np.float32) for name in chosen.inputs)
        kind = np.float32 if small else np.float64
        x = np.stack([columns[name].astype(kind) for name in chosen.inputs], axis=1)
    elif len(chosen.inputs) == 1:
        x = columns[chosen.inputs[0]]
    kept = {name: _as_id(name, columns[name]) for name in ids if name in columns}
    return Part(x, columns[chosen.label] if chosen.label else None, kept)


def as_column(values: Iterable[Any], name: str) -> Array:
    """The array that these values are, one for each sample: numbers, texts, arrays of one shape, or images."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    rows = list(values)
    first = next((value for value in rows if not _absent(value)), None)
    if isinstance(first, Image.Image | np.ndarray | torch.Tensor | Sequence) and not isinstance(first, str | bytes):
        return _stacked(rows, name)
    if isinstance(first, bool | int | float | np.number | np.bool_):
        try:
            found = np.asarray([np.nan if _absent(value) else value for value in rows])
        except (TypeError, ValueError):
            found = np.empty(0, object)
        if found.dtype.kind not in NUMBERS:
            raise DataError(f"the column {name!r} holds numbers and other values, or numbers of more than 64 bits")
        return found
    return np.fromiter(rows, object, len(rows))


def by_name(items: list[Any]) -> dict[str, Array]:
    """Columns of items that are dicts, which all have the names of the first."""
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or item.keys() != items[0].keys():
            raise DataError(f"its item {number} is {described(item)}, its first one {described(items[0])}")
    return {str(name): as_column([item[name] for item in items], str(name)) for name in items[0]}


def _stacked(values: Sequence[Any], name: str) -> Array:
    """Arrays of one shape in one array. Images have their channels first, and grey ones become colour beside others."""
    rows = list[Array]()
    for row, value in enumerate(values):
        try:
            rows.append(_row(value, name))
        except (TypeError, *UNREADABLE) as error:
            kind = "readable image" if isinstance(value, Image.Image) else "array"
            raise DataError(f"row {row} of the column {name!r} is no {kind}: {first_line(error)}") from None
        if row == 0:
            check_size(f"the column {name!r}", len(values) * rows[0].nbytes)
        if _absent(value) or rows[row].dtype.kind not in NUMBERS:
            raise DataError(f"row {row} of the column {name!r} is {quoted(value, 40)}: an array of numbers is needed")
    if any(isinstance(value, Image.Image) and len(found) == 3 for value, found in zip(values, rows, strict=True)):
        rows = [np.repeat(found, 3, axis=0) if len(found) == 1 else found for found in rows]
    for row, found in enumerate(rows):
        if found.shape != rows[0].shape:
            raise DataError(
                f"row {row} of the column {name!r} has shape {found.shape}, row 0 has {rows[0].shape}: "
                "all need one shape"
            )
    return np.stack(rows)


def _row(value: Any, name: str) -> Array:
    if isinstance(value, Image.Image):
        return pixels_of(value)
    return as_array(value, name) if isinstance(value, torch.Tensor) else np.asarray(value)


def _absent(value: object) -> bool:
    """Whether this stands for no value: None, not a number, or what pandas writes."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ABSENT


def _check_complete(name: str, column: Array) -> None:
    if column.dtype.kind == "f":
        absent = ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
    elif column.dtype == object:
        absent = np.fromiter(map(_absent, column), bool, len(column))
    else:
        return
    if absent.any():
        count = int(absent.sum())
        more = f" ({count} rows have none)" if count > 1 else ""
        raise DataError(
            f"the column {name!r} has no finite value in row {int(absent.argmax())}, counted from 0{more}: "
            "fill such rows in or leave them out"
        )


def _as_id(name: str, column: Array) -> Array:
    """An id column as numbers or as text of a fixed width."""
    if column.dtype.kind in NUMBERS:
        return column
    return as_text(f"the column {name!r}", ["" if _absent(value) else str(value) for value in column])


def _content(column: Array) -> str:
    first = next((value for value in column if not _absent(value)), None)
    return type(first).__name__ if column.dtype == object else str(column.dtype)


def listed(names: Iterable[object]) -> str:
    """Names as a sentence quotes them."""
    return shortened(", ".join(map(repr, names)), 200)


def described(item: object) -> str:
    """What kind of value this is, for a sentence."""
    if isinstance(item, Mapping):
        return f"a dict of {', '.join(map(str, item))}"
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    return "an image" if isinstance(item, Image.Image) else f"a {type(item).__name__}"
