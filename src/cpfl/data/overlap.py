"""Images that two sets share: a public set that holds test or training images would invalidate a result."""

import hashlib
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cpfl.data.samples import Samples

EXAMPLES = 5


@dataclass(frozen=True)
class Overlap:
    """Exact duplicates between two sets."""

    first: str
    second: str
    images: int  # different images that both sets hold
    in_first: int  # samples of the first set that are one of them
    in_second: int
    examples: tuple[tuple[int, int], ...]  # positions of the first few in both sets

    def __str__(self) -> str:
        where = ", ".join(f"{a} = {b}" for a, b in self.examples)
        return f"{self.first} and {self.second} share {self.images:,} images (positions {where})"


def shared_images(sets: dict[str, Samples]) -> list[Overlap]:
    """Every two sets that hold an identical image. Sets of different shapes share none."""
    positions = {name: _positions(samples) for name, samples in sets.items()}
    overlaps = []
    for first, second in combinations(sets, 2):
        a, b = positions[first], positions[second]
        shared = [(a[key], b[key]) for key in a if key in b]
        if shared:
            in_first, in_second = (sum(map(len, side)) for side in zip(*shared, strict=True))
            examples = tuple((one[0], other[0]) for one, other in shared[:EXAMPLES])
            overlaps.append(Overlap(first, second, len(shared), in_first, in_second, examples))
    return overlaps


def _positions(samples: Samples) -> dict[bytes, list[int]]:
    """The positions of each different image, by a checksum of its bytes, shape and type."""
    seed = hashlib.blake2b(repr((samples.shape, samples.x.dtype.str)).encode(), digest_size=16)
    positions: dict[bytes, list[int]] = {}
    for i, image in enumerate(samples.x):
        digest = seed.copy()
        digest.update(np.ascontiguousarray(image).data)
        positions.setdefault(digest.digest(), []).append(i)
    return positions
