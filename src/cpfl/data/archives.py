"""CIFAR-10, STL-10 and SVHN in the files that their authors publish.

An archive is never unpacked: the members whose names are known are read from it, and nothing else in it is touched.
"""

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpfl.data.catalogue import PUBLISHED_SIZES
from cpfl.data.samples import Samples
from cpfl.errors import DataError

CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes, row by row
STL_IMAGE = 3 * 96 * 96
SVHN_FILES = {split: f"{split}_32x32.mat" for split in ("train", "test", "extra")}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Archive:
    """A published archive: its file, the folder inside it, and the members of each split."""

    file: str
    folder: str
    members: dict[str, tuple[str, ...]]

    def path(self, folder: Path) -> Path | None:
        """Where the members are: the unpacked folder, the folder itself, or the archive."""
        if (folder / self.folder).is_dir():
            return folder / self.folder
        if (folder / self.members["train"][0]).is_file():
            return folder
        return folder / self.file if (folder / self.file).is_file() else None

    def read(self, path: Path, split: str) -> dict[str, Bytes] | None:
        """The contents of a split's members, in order; None where there is no such split."""
        names = self.members.get(split, ())
        found = (
            _unpacked(path, names)
            if path.is_dir()
            else _packed(path, {f"{self.folder}/{name}": name for name in names})
        )
        if not names or (split == "test" and not found):
            return None
        if missing := [name for name in names if name not in found]:
            raise DataError(f"{path} lacks {', '.join(missing)}: {', '.join(names)} are expected in it")
        return {name: found[name] for name in names}


ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)},
    ),
    "stl10": Archive(
        "stl10_binary.tar.gz",
        "stl10_binary",
        {
            "train": ("train_X.bin", "train_y.bin"),
            "test": ("test_X.bin", "test_y.bin"),
            "unlabeled": ("unlabeled_X.bin",),
        },
    ),
}


def recognise(folder: Path) -> str | None:
    """Which set's files these are: "cifar10", "stl10", "svhn", or None."""
    for name, archive in ARCHIVES.items():
        if archive.path(folder) is not None:
            return name
    return "svhn" if any((folder / name).is_file() for name in SVHN_FILES.values()) else None


def read(folder: Path, kind: str, split: str) -> Samples | None:
    """One split of a recognised folder; None where it has no such split."""
    if kind == "svhn":
        return _svhn(folder, split)
    path = ARCHIVES[kind].path(folder)
    assert path is not None, "recognise() saw it"
    members = ARCHIVES[kind].read(path, split)
    if members is None:
        return None
    return _cifar10(path, members) if kind == "cifar10" else _stl10(path, members)


def _cifar10(path: Path, members: dict[str, Bytes]) -> Samples:
    # The batches are of one size, so the largest shows where another was truncated at the end of a record.
    records = max(1, *(-(-len(raw) // CIFAR_RECORD) for raw in members.values()))
    for name, raw in members.items():
        _expect_size(path / name, len(raw), records * CIFAR_RECORD)
    rows = np.concatenate([raw.reshape(-1, CIFAR_RECORD) for raw in members.values()])
    y = rows[:, 0].astype(np.int64)
    _expect_labels(path, y, 0, 9)
    return Samples(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32), y)


def _stl10(path: Path, members: dict[str, Bytes]) -> Samples:
    (name, images), *labels = members.items()
    count = len(labels[0][1]) if labels else max(1, -(-len(images) // STL_IMAGE))
    _expect_size(path / name, len(images), count * STL_IMAGE)
    x = images.reshape(-1, 3, 96, 96).swapaxes(2, 3)  # every plane is stored column by column
    if not labels:
        return Samples(x)
    y = labels[0][1].astype(np.int64)
    _expect_labels(path / labels[0][0], y, 1, 10)
    return Samples(x, y - 1)


def _svhn(folder: Path, split: str) -> Samples | None:
    if split not in SVHN_FILES:
        return None
    from scipy.io import loadmat  # imported here: only this set needs it

    file = folder / SVHN_FILES[split]
    if not file.is_file():
        if split == "test":
            return None
        raise DataError(f"{file} is missing: SVHN's '{split}' images are expected there")
    try:
        held = loadmat(file, variable_names=["X", "y"])
        x, y = np.asarray(held["X"]), np.asarray(held["y"]).reshape(-1).astype(np.int64)
    except Exception as error:  # a truncated file makes scipy fail in many ways, none of them its own
        raise DataError(f"{_damaged(file)}: {error}") from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or x.shape[3] != len(y):
        raise DataError(
            f"{file} holds X of {x.dtype} {x.shape} and {len(y)} labels: uint8 (32, 32, 3, N) and N labels are expected"
        )
    _expect_labels(file, y, 0, 10)
    return Samples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10)  # label 10 is the digit 0


def _unpacked(folder: Path, names: tuple[str, ...]) -> dict[str, Bytes]:
    """Members as files. They are mapped, not read: the unlabelled images of STL-10 are 2.8 GB."""
    found: dict[str, Bytes] = {}
    for file in [folder / name for name in names if (folder / name).is_file()]:
        empty = not file.stat().st_size  # which cannot be mapped
        # As a plain array: taking one image of a memmap object at a time is slow.
        found[file.name] = np.empty(0, np.uint8) if empty else np.asarray(np.memmap(file, dtype=np.uint8, mode="c"))
    return found


def _packed(file: Path, wanted: dict[str, str]) -> dict[str, Bytes]:
    """Members of an archive by their names; `wanted` has these by their paths in the archive."""
    found: dict[str, Bytes] = {}
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                name = wanted.get(member.name.removeprefix("./"))
                content = archive.extractfile(member) if name is not None and member.isfile() else None
                if name is not None and content is not None:
                    found[name] = np.frombuffer(bytearray(content.read()), dtype=np.uint8)
                if len(found) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{_damaged(file)}: {error}") from error
    return found


def _damaged(file: Path) -> str:
    published = PUBLISHED_SIZES.get(file.name)
    expected = f", the published file has {published:,}" if published else ""
    return f"{file} is truncated or damaged (found {file.stat().st_size:,} bytes{expected})"


def _expect_size(file: Path, found: int, expected: int) -> None:
    if found != expected:
        raise DataError(f"{file} is truncated or damaged: expected {expected:,} bytes, found {found:,}")


def _expect_labels(file: Path, y: NDArray[np.int64], lowest: int, highest: int) -> None:
    if len(y) and not (lowest <= y.min() and y.max() <= highest):
        raise DataError(f"{file} has labels from {y.min()} to {y.max()}: {lowest} to {highest} are allowed")
