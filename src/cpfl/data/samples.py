"""Samples: what every source delivers and every split divides."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError

EXAMPLES = 5  # shared images whose positions are named
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
