"""Published sets whose samples belong to people, roles or hospitals: a natural split, and no images.

Each module reads the files that a user downloads. It divides them by a fixed rule, with no random choice: a training
set with the column that says whose a sample is, a test set, and a public set of others, without labels.
"""

from pathlib import Path
from typing import Protocol

from cpfl.data.natural import har, heart, shakespeare
from cpfl.data.samples import Samples

SPLITS = ("train", "test", "public")


class Reader(Protocol):
    """What a module of this package offers."""

    def found(self, folder: Path) -> bool:
        """Whether a folder holds the published files."""

    def read(self, folder: Path, split: str) -> Samples | None:
        """One split; None where there is no such split."""


READERS: dict[str, Reader] = {"har": har, "heart": heart, "shakespeare": shakespeare}


def recognise(folder: Path) -> str | None:
    """Which set's files these are, or None."""
    return next((name for name, reader in READERS.items() if reader.found(folder)), None)
