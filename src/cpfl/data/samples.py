"""Samples: what every source delivers and every split divides."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError

EXAMPLES = 5  # shared images whose positions are named

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Samples:
    """Inputs (images as uint8 channels-first, anything else as floats), labels where known, and id columns."""

    x: Array
    y: NDArray[np.int64] | None = None
    columns: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in [("labels", self.y), *self.columns.items()]:
            if column is not None and len(column) != len(self.x):
                raise DataError(f"{name} has {len(column)} entries for {len(self.x)} samples: one for each is needed")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def take(self, index: NDArray[np.int64]) -> "Samples":
        """The samples at these positions."""
        y = None if self.y is None else self.y[index]
        return Samples(self.x[index], y, {name: column[index] for name, column in self.columns.items()})

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
