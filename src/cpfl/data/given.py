"""What users hand over in Python instead of the names of data sets: arrays, several inputs, labels of any kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cpfl.data.samples import Array, Samples, integers, packed
from cpfl.errors import DataError


@dataclass(frozen=True)
class Given:
    """Data handed over in Python instead of by name."""

    train: Samples | None = None
    test: Samples | None = None
    public: Samples | None = None
    class_names: tuple[str, ...] = ()  # where labels were no integers


def as_samples(x: object, y: object = None, columns: dict[str, object] | None = None) -> Samples:
    """Samples from a user's arrays or tensors; labels are numbers here."""
    if not isinstance(columns, dict | None):
        raise DataError(f"columns are a dict of names and values, not {type(columns).__name__}")
    labels = None
    if y is not None:
        found = label_array(y)
        if found.ndim == 0 or found.dtype.kind not in "fiub":
            raise DataError(f"labels are numbers, for each sample; these are {found.dtype} of shape {found.shape}")
        labels = found if found.dtype.kind == "f" else integers(found, "the labels")
    ids = {name: as_array(column, name) for name, column in (columns or {}).items()}
    arrays = inputs(x)
    if isinstance(arrays, dict):
        rows, fields = packed(arrays)
        return Samples(rows, labels, ids, fields)
    return Samples(arrays, labels, ids)


def inputs(x: object) -> Array | dict[str, Array]:
    """Arrays that models take: one, or several by the names of arguments; a tuple's are called by their position."""
    if not isinstance(x, Mapping | tuple):
        return _inputs(x, "the inputs", 2)
    named = x if isinstance(x, Mapping) else {str(place): values for place, values in enumerate(x)}
    if not named or not all(isinstance(name, str) for name in named):
        raise DataError("several inputs are a tuple of arrays, or a dict of arrays by the names of arguments")
    arrays = {name: _inputs(values, f"the input {name!r}", 1) for name, values in named.items()}
    if len({len(values) for values in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {len(values)}" for name, values in arrays.items())
        raise DataError(f"the inputs have different numbers of samples: {sizes}")
    return arrays


def named_labels(*sets: object) -> tuple[list[Any], tuple[str, ...]]:
    """Labels of several sets as integers, with the names of the classes: strings, categories and booleans count."""
    arrays = [None if labels is None else label_array(labels) for labels in sets]
    texts = [labels for labels in arrays if labels is not None and labels.dtype.kind in "OUS"]
    if not texts:
        return arrays, ()
    if len(texts) < sum(labels is not None for labels in arrays):
        raise DataError("labels are names in one set and numbers in another: both must be of one kind")
    try:
        names = np.unique(texts[0].astype(str))
    except (TypeError, ValueError):
        raise DataError("labels are integers or texts, one for each sample") from None
    numbered = list[Any]()
    for labels in arrays:
        if labels is None:
            numbered.append(None)
            continue
        strange = np.setdiff1d(labels.astype(str), names)
        if len(strange):
            known = ", ".join(names[:20])
            raise DataError(f"the label {str(strange[0])!r} is not among those of the training set: {known}")
        numbered.append(np.searchsorted(names, labels.astype(str)))
    return numbered, tuple(names.tolist())


def label_array(values: object) -> Array:
    """Labels as they come, an array of one label for each sample; an object array of texts stays one."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        values = np.asarray(values)
    labels = as_array(values, "the labels")
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _inputs(values: object, name: str, axes: int) -> Array:
    """An array that models take: floats, integers or booleans, in the order of its axes in memory."""
    found = as_array(values, name)
    if np.iscomplexobj(found):
        raise DataError(f"{name} are complex: give real and imaginary part as two real numbers")
    if found.dtype.kind not in "fiub":
        raise DataError(f"{name} are {found.dtype}: numbers are needed")
    if found.ndim < axes:
        more = ", at least one more is needed" if axes > 1 else ""
        raise DataError(f"{name} have shape {found.shape}: the first axis counts samples{more}")
    if found.dtype.kind == "f":
        found = found.astype(np.float64 if found.dtype == np.float64 else np.float32)
        if not np.isfinite(found).all():
            raise DataError(f"{name} contain values that are not finite numbers")
    elif found.dtype.kind == "u" and found.dtype.itemsize > 1:  # torch has no such numbers
        found = integers(found, name)
    return np.require(found, requirements=["C", "W"])  # torch warns of memory that it may not write


def as_array(values: object, name: str) -> Array:
    """What numpy makes of an array, a tensor or nested lists."""
    if isinstance(values, tuple):
        raise DataError(f"{name} are a tuple: one array or tensor is needed")
    try:
        if isinstance(values, torch.Tensor):
            values = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are no array: {error}") from None
