"""Named columns become samples: which of them is the label, which are inputs, which say who owns a sample.

Without arrays, all numbers of a row together are one sample's inputs. Where a sample has arrays, they are the inputs
and single values beside them are id columns, as texts always are.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpfl.data import columns as files_of
from cpfl.data import parquet
from cpfl.data.samples import Array, Samples, integers, packed
from cpfl.errors import DataError

LABELS = ("label", "labels", "target", "y", "class")
SPLIT = re.compile(r"(?P<split>[^-]+)(-.*)?")  # train.csv, train-0.csv, train-00000-of-00002.parquet
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Roles:
    """Columns that an experiment names: they are no inputs."""

    label: str = ""  # empty: the first of LABELS that there is
    ids: tuple[str, ...] = ()
    names: bool = True  # whether labels may be names of classes


def splits(path: Path) -> dict[str, list[Path]]:
    """The files of every split: one file is a training set, in a folder names begin with their split."""
    if os.path.isfile(path):
        return {"train": [path]} if path.suffix in files_of.SUFFIXES else {}
    for folder in filter(os.path.isdir, (path / name for name in parquet.FOLDERS)):
        found: dict[str, list[Path]] = {}
        for file in sorted(folder.iterdir()):
            if file.suffix in files_of.SUFFIXES and (match := SPLIT.fullmatch(file.stem)):
                found.setdefault(match["split"], []).append(file)
        if {"train", "test"} & set(found):
            return found
    return {}


def read(path: Path, split: str, roles: Roles, *, labelled: bool = True) -> Samples | None:
    """One split, or None where there is no file of it; of an unlabelled one a label is not read."""
    files = splits(path)
    if split not in files:
        return None
    if len({file.suffix for file in files[split]}) > 1:
        raise DataError(f"{path} has the split '{split}' as {' and '.join(f.name for f in files[split][:2])}: one only")
    parquet.check_complete(split, files[split])
    held = files_of.read(files[split])
    label = label_column(held, roles.label)
    if labelled and label is None:
        raise DataError(
            f"{path} has no column of labels ({', '.join(LABELS)}): data.label names another of {', '.join(held)}"
        )
    names = class_names(path, roles) if labelled else ()
    if names and not roles.names:
        raise DataError(f"{path} has names as labels in '{label}': model.objective needs numbers")
    return samples(held, Roles(label or "", roles.ids), str(path), names, labelled=labelled)


def class_names(path: Path, roles: Roles) -> tuple[str, ...]:
    """What the labels are called, in sorted order over all splits; empty where they are numbers."""
    found = list[Array]()
    for files in splits(path).values():
        label = label_column(files_of.names(files[0]), roles.label)
        if label is not None:
            found.append(files_of.read(files, [label])[label])
    texts = [values for values in found if values.dtype.kind == "U"]
    return tuple(np.unique(np.concatenate(texts)).tolist()) if texts else ()


def label_column(columns: Collection[str], chosen: str = "") -> str | None:
    """The column of labels: the chosen one, or the one that is called so; None where there is none."""
    if chosen:
        return chosen if chosen in columns else None
    known = [name for name in LABELS if name in columns]
    if len(known) > 1:
        raise DataError(f"the columns {' and '.join(known)} can both be labels: name one in data.label")
    return known[0] if known else None


def samples(
    columns: Mapping[str, Array], roles: Roles, where: str, names: tuple[str, ...] = (), *, labelled: bool = True
) -> Samples:
    """Samples from named columns.

    Parameters
    ----------
    columns
        One entry for each sample in every column.
    roles
        The column of labels and those of ids.
    where
        What the columns are from, for messages.
    names
        The classes, where labels are texts.
    labelled
        Whether labels are taken over.
    """
    others = {roles.label, *roles.ids, *filter(files_of.is_index, columns)}
    given = {name: values for name, values in columns.items() if name not in others}
    ids = {name: columns[name] for name in roles.ids if name in columns}
    arrays = {name: values for name, values in given.items() if values.ndim > 1}
    numbers = {name: values for name, values in given.items() if values.ndim == 1 and values.dtype.kind != "U"}
    texts = {name: values for name, values in given.items() if values.dtype.kind == "U" and values.ndim == 1}
    y = _numbered(columns[roles.label], names, f"column '{roles.label}' of {where}") if labelled else None
    if arrays:
        if bad := [name for name, values in arrays.items() if values.dtype.kind == "U"]:
            raise DataError(f"array '{bad[0]}' of {where} holds texts: arrays of numbers are inputs")
        plain = {name: _plain(values, f"array '{name}' of {where}") for name, values in arrays.items()}
        x, fields = (next(iter(plain.values())), ()) if len(plain) == 1 else packed(plain)
        return Samples(x, y, ids | numbers | texts, fields)
    for name, values in texts.items():
        _no_number_is_a_text(values, f"column '{name}' of {where}")
    if not numbers:
        raise DataError(f"{where} has no column of numbers beside labels and ids; its columns: {', '.join(columns)}")
    for name, values in numbers.items():
        if (np.abs(values.astype(np.float64)) > LARGEST).any():
            raise DataError(f"column '{name}' of {where} has numbers beyond {LARGEST:g}, the largest of 32 bits")
    table = np.stack([values.astype(np.float32) for values in numbers.values()], axis=1)
    return Samples(table, y, ids | texts, names=tuple(numbers))


def _plain(values: Array, what: str) -> Array:
    """Floats of 32 or 64 bits, bytes, or integers that torch has."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, np.float64 if values.dtype == np.float64 else np.float32)
    signed = values.dtype.kind == "u" and values.dtype.itemsize > 1
    return np.ascontiguousarray(integers(values, what) if signed else values)


def _numbered(values: Array, names: tuple[str, ...], what: str) -> Array:
    """Labels as numbers: texts by their place among the names of the classes, whole numbers as integers."""
    labels: Any = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
    if labels.dtype.kind == "U" or names:
        if labels.dtype.kind != "U":
            raise DataError(f"{what} has numbers, and another split has names: labels must be of one kind")
        if (labels == "").any():
            raise DataError(f"{what} has no label in row {int(np.argmax(labels == '')) + 1}")
        if labels.ndim == 1:
            _no_number_is_a_text(labels, what)
        return np.asarray(np.searchsorted(np.asarray(names), labels))
    if labels.dtype.kind == "f":
        numbers = labels.astype(np.float64)
        if (numbers != np.rint(numbers)).any() or (np.abs(numbers) >= 2.0**63).any():
            return np.asarray(numbers)  # whether such labels have a meaning, the objective knows
    return integers(labels, what)


def _no_number_is_a_text(values: Array, what: str) -> None:
    """Refuse a column of numbers that a few other entries make a column of texts: no input, or names of classes."""
    numbers = np.array([_is_number(text) for text in values.tolist()])
    if 0 < numbers.sum() < len(values) <= 2 * numbers.sum():
        row = int(np.argmin(numbers))
        raise DataError(
            f"{what} has {str(values[row])!r} in row {row + 1} and mostly numbers: fill it, or leave the row out"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
