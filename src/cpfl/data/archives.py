"""CIFAR-10, STL-10 and SVHN in the files that their authors publish.

An archive is never unpacked: the members whose names are known are read from it, and nothing else in it is touched.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpfl.data.catalogue import published_size
from cpfl.data.samples import Samples
from cpfl.errors import DataError

CIFAR_IMAGE = 3 * 32 * 32
CIFAR_RECORD = 1 + CIFAR_IMAGE  # a label, then the red, green and blue planes, row by row
STL_IMAGE = 3 * 96 * 96
CIFAR_MEMBERS = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
STL_MEMBERS = {
    "train": ("train_X.bin", "train_y.bin"),
    "test": ("test_X.bin", "test_y.bin"),
    "unlabeled": ("unlabeled_X.bin",),
}
SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}

Bytes = NDArray[np.uint8]


def recognise(folder: Path) -> str | None:
    """Which set's files these are: "cifar10", "stl10", "svhn", or None."""
    if _place(folder, "cifar-10-batches-bin", "cifar-10-binary.tar.gz", "data_batch_1.bin"):
        return "cifar10"
    if _place(folder, "stl10_binary", "stl10_binary.tar.gz", "train_X.bin"):
        return "stl10"
    if any((folder / name).is_file() for name in SVHN_FILES.values()):
        return "svhn"
    return None


def read(folder: Path, kind: str, split: str) -> Samples | None:
    """One split of a recognised folder; None where it has no test set."""
    match kind:
        case "cifar10":
            return _cifar10(folder, split)
        case "stl10":
            return _stl10(folder, split)
        case _:
            return _svhn(folder, split)


def _cifar10(folder: Path, split: str) -> Samples | None:
    if split not in CIFAR_MEMBERS:
        return None
    place = _place(folder, "cifar-10-batches-bin", "cifar-10-binary.tar.gz", "data_batch_1.bin")
    assert place is not None, "recognise() saw it"
    members = _members(place, CIFAR_MEMBERS[split], "cifar-10-batches-bin")
    if split == "test" and not members:
        return None
    _all_there(place, members, CIFAR_MEMBERS[split])
    # The batches are of one size, so the largest tells where another was cut at the end of a record.
    records = max(1, *(-(-len(raw) // CIFAR_RECORD) for raw in members.values()))
    for name, raw in members.items():
        _expect_size(place / name, len(raw), records * CIFAR_RECORD)
    joined = np.concatenate([raw.reshape(-1, CIFAR_RECORD) for raw in members.values()])
    y = joined[:, 0].astype(np.int64)
    _expect_labels(place, y, 0, 9)
    return Samples(np.ascontiguousarray(joined[:, 1:]).reshape(-1, 3, 32, 32), y)


def _stl10(folder: Path, split: str) -> Samples | None:
    if split not in STL_MEMBERS:
        return None
    place = _place(folder, "stl10_binary", "stl10_binary.tar.gz", "train_X.bin")
    assert place is not None, "recognise() saw it"
    members = _members(place, STL_MEMBERS[split], "stl10_binary")
    if split == "test" and not members:
        return None
    _all_there(place, members, STL_MEMBERS[split])
    images, *labels = members.items()
    count = len(labels[0][1]) if labels else max(1, -(-len(images[1]) // STL_IMAGE))
    _expect_size(place / images[0], len(images[1]), count * STL_IMAGE)
    # Every plane is stored column by column.
    x = images[1].reshape(-1, 3, 96, 96).swapaxes(2, 3)
    if not labels:
        return Samples(x)
    y = labels[0][1].astype(np.int64)
    _expect_labels(place / labels[0][0], y, 1, 10)
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
    # A cut file makes scipy fail in many ways, none of them its own.
    except Exception as error:
        raise DataError(f"{_damaged(file)}: {error}") from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or x.shape[3] != len(y):
        raise DataError(
            f"{file} holds X of {x.dtype} {x.shape} and {len(y)} labels: uint8 (32, 32, 3, N) and N labels are expected"
        )
    _expect_labels(file, y, 0, 10)
    return Samples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10)  # label 10 is the digit 0


def _place(folder: Path, inner: str, archive: str, first: str) -> Path | None:
    """Where the members are: the unpacked folder, the folder itself, or the archive."""
    if (folder / inner).is_dir():
        return folder / inner
    if (folder / first).is_file():
        return folder
    return folder / archive if (folder / archive).is_file() else None


def _members(place: Path, names: tuple[str, ...], prefix: str) -> dict[str, Bytes]:
    """The contents of those members that are there, by name and in this order."""
    if place.is_dir():
        files = [place / name for name in names]
        # Mapped, not read: the unlabelled images of STL-10 are 2.8 GB.
        return {file.name: _mapped(file) for file in files if file.is_file()}
    wanted = {f"{prefix}/{name}": name for name in names}
    found: dict[str, Bytes] = {}
    try:
        with tarfile.open(place, "r:gz") as archive:
            for member in archive:
                name = wanted.get(member.name.removeprefix("./"))
                if name is None or not member.isfile():
                    continue
                content = archive.extractfile(member)
                assert content is not None
                found[name] = np.frombuffer(bytearray(content.read()), dtype=np.uint8)
                if len(found) == len(wanted):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{_damaged(place)}: {error}") from error
    return {name: found[name] for name in names if name in found}


def _mapped(file: Path) -> Bytes:
    if not file.stat().st_size:
        return np.empty(0, dtype=np.uint8)
    # As a plain array: taking one image of a memmap object at a time is slow.
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="c"))


def _damaged(file: Path) -> str:
    published = published_size(file.name)
    expected = f", the published file has {published:,}" if published else ""
    return f"{file} is truncated or damaged (found {file.stat().st_size:,} bytes{expected})"


def _all_there(place: Path, members: dict[str, Bytes], names: tuple[str, ...]) -> None:
    if missing := [name for name in names if name not in members]:
        raise DataError(f"{place} lacks {', '.join(missing)}: {', '.join(names)} are expected in it")


def _expect_size(file: Path, found: int, expected: int) -> None:
    if found != expected:
        raise DataError(f"{file} is truncated or damaged: expected {expected:,} bytes, found {found:,}")


def _expect_labels(file: Path, y: NDArray[np.int64], lowest: int, highest: int) -> None:
    if len(y) and not (lowest <= y.min() and y.max() <= highest):
        raise DataError(f"{file} has labels from {y.min()} to {y.max()}: {lowest} to {highest} are allowed")
