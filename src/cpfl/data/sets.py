"""One set as users have it in Python: arrays, a torch Dataset, a Hugging Face dataset or a frame."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from cpfl.data.frames import class_names, columns_of, is_hugging_face, is_table
from cpfl.data.given import as_array, inputs, label_array
from cpfl.data.given_columns import (
    Part,
    Roles,
    as_column,
    assembled,
    by_name,
    described,
    label_columns,
    listed,
    roles,
    unlabelled_roles,
)
from cpfl.data.samples import Array
from cpfl.errors import DataError, first_line

Use = Literal["whole", "part", "public"]
"""A training set with an id column that names the clients, a set whatever its columns, or one without labels."""
NONE: Mapping[str, Any] = {}
FORMS = "a tuple (inputs, labels) or (inputs, labels, columns), a torch Dataset, a Hugging Face dataset, or a frame"
ITEM = "item"  # the column of a Dataset's inputs, in messages


def is_dataset(value: object) -> bool:
    """Whether it is a torch Dataset whose items are numbered."""
    return isinstance(value, Dataset) and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def refuse_stream(value: object) -> None:
    """Refuse what delivers samples once, or in an order of its own."""
    if isinstance(value, DataLoader):
        raise DataError("a DataLoader is given: give its dataset (loader.dataset); batches are made by federation")
    if isinstance(value, IterableDataset) or (is_hugging_face(value) and not hasattr(value, "__len__")):
        raise DataError("a dataset that streams is given: give one whose items are numbered, with a length")
    if isinstance(value, Iterator):
        raise DataError(f"a {type(value).__name__} is given, which delivers its samples once: give arrays or a list")


def is_named_table(value: object) -> bool:
    """Whether it is (table, name of the label), or the names of inputs, too."""
    return isinstance(value, tuple) and len(value) in (2, 3) and is_table(value[0]) and isinstance(value[1], str)


class SetReader:
    """Reads the sets of one experiment: columns of all its tables have the roles that the first one shows."""

    def __init__(
        self, ids: Collection[str] = (), notify: Callable[[str], None] = lambda text: None, label: str = ""
    ) -> None:
        self._ids, self._notify, self._label = ids, notify, label  # ids are neither label nor input
        self._roles: Roles | None = None
        self.class_names: tuple[str, ...] = ()

    @property
    def has_columns(self) -> bool:
        """Whether a table was read."""
        return self._roles is not None

    def read(self, given: Any, use: Use = "part") -> Part:
        """Inputs, labels and id columns of a set."""
        refuse_stream(given)
        if is_table(given) or is_named_table(given):
            table, label, names = (*given, ())[:3] if isinstance(given, tuple) else (given, "", ())
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                raise DataError(f"beside a table and its label come the names of inputs, not {described(names)}")
            return self._columns(columns_of(table), use, label, tuple(names), class_names(table))
        if is_dataset(given):
            return self._items(given, use)
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise DataError(f"{described(given)} is given: {FORMS} is needed")
        return _arrays(*given)

    def _columns(
        self,
        columns: dict[str, Array],
        use: Use,
        label: str = "",
        names: tuple[str, ...] = (),
        classes: Mapping[str, tuple[str, ...]] = NONE,
    ) -> Part:
        if use == "public":
            for name in label_columns(columns, self._ids):
                self._notify(f"the column {name!r} of the public set is not used")
            known = replace(self._roles, label="") if self._roles else unlabelled_roles(columns, self._ids)
            return assembled(columns, known, self._ids)
        if use == "whole" and (lacking := [name for name in self._ids if name not in columns]):
            raise DataError(f"there is no column {lacking[0]!r}; the columns are {listed(columns)}")
        if self._roles is None:
            self._roles = roles(columns, self._ids, label or self._label, names)
            unused = [name for name in columns if name not in (self._roles.label, *self._roles.inputs, *self._ids)]
            more = f"; not used: {listed(unused)}" if unused else ""
            self._notify(f"the label is {self._roles.label!r}, the inputs are {listed(self._roles.inputs)}{more}")
        elif label not in ("", self._roles.label) or names not in ((), self._roles.inputs):
            raise DataError(f"it has {label!r} as its label, the first table {self._roles.label!r}, or other inputs")
        self.class_names = self.class_names or classes.get(self._roles.label, ())
        return assembled(columns, self._roles, self._ids)

    def _items(self, dataset: Any, use: Use) -> Part:
        """A Dataset's items one after the other: pairs (inputs, label), or dicts."""
        items = list[Any]()
        for number in range(len(dataset)):
            try:
                items.append(dataset[number])
            except Exception as error:  # a user's class can fail in any way
                what = f"{type(error).__name__}: {first_line(error)}"
                raise DataError(f"its item {number} cannot be read: {what}") from error
        if items and isinstance(items[0], Mapping):
            return self._columns(by_name(items), use)
        pairs = bool(items) and isinstance(items[0], tuple | list) and len(items[0]) == 2
        if not pairs and items and use != "public":
            raise DataError(f"its items are {described(items[0])}: pairs (inputs, label) or dicts are needed")
        if pairs and use == "public":
            self._notify("the labels in the items of the public set are not used")
        single = bool(items) and isinstance(items[0], tuple | list) and len(items[0]) == 1  # TensorDataset(x)
        x = [item[0] for item in items] if pairs or single else items
        return Part(_inputs(x), None if use == "public" else as_column([item[1] for item in items], "label"))


def _arrays(x: Any, y: Any, columns: Any = NONE) -> Part:
    """A set of arrays, checked."""
    if isinstance(x, list) and not x:
        raise DataError("it has no samples")
    if not isinstance(columns, Mapping):
        raise DataError(f"columns are a dict of names and values, not {type(columns).__name__}")
    labels, ids = label_array(y), {name: as_array(column, name) for name, column in columns.items()}
    part = Part(inputs(x), labels, ids)
    for name, values in {"labels": labels, **ids}.items():
        if values.ndim == 0 or len(values) != len(part):
            has = f"has {len(values)} entries" if values.ndim else "is a single value"
            raise DataError(f"{name} {has} for {len(part)} samples: one for each is needed")
    return part


def _inputs(x: list[Any]) -> Array | dict[str, Array]:
    """Inputs of all items as arrays: one, or several by name or position."""
    if not x:
        return np.zeros((0, 1), np.float32)
    if isinstance(x[0], Mapping):
        return inputs(by_name(x))
    if isinstance(x[0], tuple):
        return inputs(tuple(as_column([one[place] for one in x], f"{ITEM} {place}") for place in range(len(x[0]))))
    return inputs(as_column(x, ITEM))
