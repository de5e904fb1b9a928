"""Samples: what every source delivers and every split divides."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError

EXAMPLES = 5  # shared images whose positions are named
SHORT = 16  # integers of a sample, each of which may have a range of its own
IMAGE_AXES = 3
ALIGNMENT = 8  # bytes: every type can be viewed from such a position
LARGEST = 2**63 - 1  # of the integers that torch has

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Field:
    """One of several inputs of a model, which lie packed in a row of bytes for each sample."""

    name: str  # of an argument; a number: by position
    dtype: str
    shape: tuple[int, ...]
    start: int  # its first byte, a multiple of ALIGNMENT

    @property
    def end(self) -> int:
        """The byte after its last one."""
        return self.start + math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Samples:
    """Inputs, labels where known, and id columns.

    x has one row for each sample. Where a model takes several inputs, `fields` says what lies in a row of bytes; of a
    table, `names` says what the numbers of a row are.
    """

    x: Array
    y: NDArray[Any] | None = None  # as the source has them; as the objective takes them, once data are loaded
    columns: dict[str, Array] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, column in [("labels", self.y), *self.columns.items()]:
            if column is not None and len(column) != len(self.x):
                raise DataError(f"{name} has {len(column)} entries for {len(self.x)} samples: one for each is needed")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; () if it has several inputs."""
        return () if self.fields else tuple(self.x.shape[1:])

    def take(self, index: NDArray[np.int64]) -> "Samples":
        """The samples at these positions."""
        y = None if self.y is None else self.y[index]
        columns = {name: column[index] for name, column in self.columns.items()}
        return Samples(self.x[index], y, columns, self.fields, self.names)

    def input(self, one: Field) -> Array:
        """One of several inputs, as an array of its own."""
        return self.x[:, one.start : one.end].copy().view(one.dtype).reshape(len(self.x), *one.shape)

    def like(self, other: "Samples") -> "Samples":
        """The same samples, their inputs in another set's order and types; integers only where none is lost."""
        own = {one.name: one for one in self.fields}
        if self.fields == other.fields or own.keys() != {one.name for one in other.fields}:
            return self
        rows, fields = packed({f.name: _as_type(self.input(own[f.name]), np.dtype(f.dtype)) for f in other.fields})
        return replace(self, x=rows, fields=fields)

    def extremes(self) -> NDArray[np.int64]:
        """Positions of samples with the smallest and the largest integers; in short ones, at each place."""
        found, whole = set[int](), [] if self.fields or self.x.dtype.kind not in "iu" else [self.x]
        for values in [*whole, *(self.input(one) for one in self.fields if np.dtype(one.dtype).kind in "iu")]:
            if len(values):
                flat = values.reshape(len(values), -1)
                columns = flat.T if flat.shape[1] <= SHORT else [flat.min(1), flat.max(1)]
                found.update(int(k) for column in columns for k in (column.argmin(), column.argmax()))
        return np.array(sorted(found), np.int64)

    def fingerprint(self) -> str:
        """A checksum of inputs and labels, so that a resumed run sees the data it began with."""
        digest = hashlib.sha256(repr((self.x.shape, str(self.x.dtype))).encode())
        digest.update(np.ascontiguousarray(self.x).data)
        if self.y is not None:
            digest.update(np.ascontiguousarray(self.y).data)
        return digest.hexdigest()

    def first_positions(self) -> dict[bytes, int]:
        """Where each different sample comes first, by a checksum of its bytes, shape and type."""
        kind = repr((self.shape, self.x.dtype.str)).encode()
        positions: dict[bytes, int] = {}
        for i, sample in enumerate(self.x):
            positions.setdefault(hashlib.blake2b(kind + sample.tobytes(), digest_size=16).digest(), i)
        return positions


def _as_type(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values in another type: any floats, and integers that it can hold."""
    pixels = np.uint8 in (values.dtype, dtype) and values.ndim == 1 + IMAGE_AXES  # of another type they mean others
    if values.dtype.kind == dtype.kind == "f":
        return values.astype(dtype)
    if values.dtype.kind in "iu" and dtype.kind in "iu" and not pixels:
        found = values.astype(dtype)
        return found if np.array_equal(found, values) else values
    return values


def packed(arrays: Mapping[str, Array]) -> tuple[Array, tuple[Field, ...]]:
    """Several inputs as one array with a row of bytes for each sample, and where each lies in a row."""
    fields, rows, end = list[Field](), list[NDArray[np.uint8]](), 0
    for name, values in arrays.items():
        one = Field(name, str(values.dtype), tuple(values.shape[1:]), end)
        width = -(-one.end // ALIGNMENT) * ALIGNMENT - end
        row = np.zeros((len(values), width), np.uint8)
        row[:, : one.end - end] = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
        fields.append(one)
        rows.append(row)
        end += width
    return np.concatenate(rows, axis=1), tuple(fields)


@dataclass(frozen=True)
class Overlap:
    """Exact duplicates between two sets."""

    first: str
    second: str
    images: int  # different images that both sets hold
    examples: tuple[tuple[int, int], ...]  # positions of the first few in both sets

    def __str__(self) -> str:
        where = ", ".join(f"{a} = {b}" for a, b in self.examples)
        return f"{self.first} and {self.second} share {self.images:,} images (positions {where})"


def shared_images(sets: Mapping[str, Samples]) -> list[Overlap]:
    """Every two sets that hold an identical image: a public set with test or training images invalidates a result."""
    positions = {name: samples.first_positions() for name, samples in sets.items()}
    overlaps = []
    for first, second in combinations(sets, 2):
        a, b = positions[first], positions[second]
        if shared := [(a[key], b[key]) for key in a if key in b]:
            overlaps.append(Overlap(first, second, len(shared), tuple(shared[:EXAMPLES])))
    return overlaps


def integers(values: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Integers and booleans as torch has them; larger ones are refused."""
    if values.dtype.kind == "u" and values.size and values.max() > LARGEST:
        raise DataError(f"an integer of {what} is {values.max()}: at most {LARGEST} is allowed")
    return values.astype(np.int64)
