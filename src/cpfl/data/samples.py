"""Samples: what every source delivers and every split divides."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpfl.errors import DataError

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
        return Samples(
            self.x[index],
            None if self.y is None else self.y[index],
            {name: column[index] for name, column in self.columns.items()},
        )

    def fingerprint(self) -> str:
        """A checksum of inputs and labels, so that a resumed run sees the data it began with."""
        digest = hashlib.sha256(repr((self.x.shape, str(self.x.dtype))).encode())
        digest.update(np.ascontiguousarray(self.x).data)
        if self.y is not None:
            digest.update(np.ascontiguousarray(self.y).data)
        return digest.hexdigest()
