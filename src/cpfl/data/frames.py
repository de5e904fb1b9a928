"""Tables that users have in memory as columns: a pandas frame, a Hugging Face dataset, an Arrow or polars table.

None of these packages is imported but Arrow: objects are known by what they can do.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpfl.data.given_columns import as_column, by_name
from cpfl.data.samples import Array
from cpfl.errors import DataError, first_line


def is_hugging_face(value: object) -> bool:
    """Whether it is a dataset of Hugging Face's package."""
    return all(hasattr(value, name) for name in ("features", "column_names", "with_format"))


def is_table(value: object) -> bool:
    """Whether it has named columns of one length."""
    named = hasattr(value, "columns") or hasattr(value, "column_names")
    exports = any(hasattr(value, name) for name in ("iloc", "__arrow_c_stream__"))
    return is_hugging_face(value) or (named and exports)


def columns_of(table: Any) -> dict[str, Array]:
    """All columns of a table, in its order."""
    if is_hugging_face(table):
        return _hugging_face(table)
    if hasattr(table, "iloc"):  # pandas: it may hold arrays and images, which Arrow does not take
        names = [str(name) for name in table.columns]
        check_names(names)
        return {name: as_column(table.iloc[:, place].to_numpy(), name) for place, name in enumerate(names)}
    try:
        arrow = table if isinstance(table, pa.Table) else pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"a {type(table).__name__} cannot be read: {first_line(error)}") from None
    return arrow_columns(arrow)


def class_names(table: Any) -> dict[str, tuple[str, ...]]:
    """What a Hugging Face dataset calls the values of its columns of classes, by column."""
    features = table.features.items() if is_hugging_face(table) and table.features else ()
    lists = {name: getattr(feature, "names", None) for name, feature in features}
    return {name: tuple(map(str, names)) for name, names in lists.items() if isinstance(names, list)}


def arrow_columns(table: pa.Table) -> dict[str, Array]:
    """The columns of an Arrow table."""
    check_names(table.column_names)
    return {name: _arrow(column, name) for name, column in zip(table.column_names, table.columns, strict=True)}


def check_names(names: list[str]) -> None:
    """Refuse two columns of one name."""
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise DataError(f"there are {names.count(twice[0])} columns {twice[0]!r}: one is allowed")


def _hugging_face(dataset: Any) -> dict[str, Array]:
    if dataset.format["type"] == "custom":  # a function of the user's makes rows when they are read
        return by_name([dataset[row] for row in range(len(dataset))])
    names = list(dataset.column_names)
    images = [name for name in names if type(dataset.features[name]).__name__ == "Image"]
    others = [name for name in names if name not in images]
    found = arrow_columns(dataset.select_columns(others).with_format("arrow")[:]) if others else {}
    decoded = dataset.with_format(None)
    for name in images:
        found[name] = as_column((row[name] for row in decoded.select_columns([name])), name)
    return {name: found[name] for name in names}


def _arrow(column: pa.ChunkedArray, name: str) -> Array:
    """A column of numbers, of texts, or of lists, which become arrays where they all have one shape."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of no chunks, or of too many bytes for one
        return as_column(array.to_pylist(), name)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    shape, rows = list[int](), len(array)
    while is_list(array.type):
        lengths = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(lengths) != 1 or lengths[0] is None or array.null_count:
            return as_column(column.to_pylist(), name)  # which says what is wrong with it
        shape.append(lengths[0])
        array = array.flatten()
    if shape and array.null_count:
        return as_column(column.to_pylist(), name)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == object and not shape:
        return as_column(values, name)
    return np.ascontiguousarray(values.reshape(rows, *shape))


def is_list(type_: pa.DataType) -> bool:
    """Whether its values are lists."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(kind(type_) for kind in kinds)
