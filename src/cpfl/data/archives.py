"""CIFAR-10, STL-10, SVHN and LEAF's FEMNIST in the files that their authors publish.

An archive is never unpacked: the members whose names are known are read from it, and nothing else in it is touched.
"""

import gzip
import json
import math
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.catalogue import CATALOGUE, PUBLISHED_SIZES, Entry
from cpfl.data.limit import as_text, check_size
from cpfl.data.samples import Samples
from cpfl.errors import DataError, first_line
from cpfl.user_files import check_readable

CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes, row by row
STL_IMAGE = 3 * 96 * 96
LEAF_SIDE = 28  # of an image, in pixels
MOST_MEMBERS = 1000  # of an archive; the published ones have a dozen
SVHN_FILES = {split: f"{split}_32x32.mat" for split in ("train", "test", "extra")}

Bytes = NDArray[np.uint8]


def recognise(folder: Path) -> str | None:
    """Which set's files these are: "cifar10", "stl10", "svhn", "LEAF", or None."""
    for name, entry in CATALOGUE.items():
        if entry.members and _location(entry, folder) is not None:
            return name
    if any((folder / name).is_file() for name in SVHN_FILES.values()):
        return "svhn"
    return "LEAF" if leaf_splits(folder) else None


def leaf_splits(folder: Path) -> list[str]:
    """The splits that a folder in LEAF's layout holds."""
    return [split for split in ("test", "train") if any((folder / split).glob("*.json"))]


def read(folder: Path, kind: str, split: str) -> Samples | None:
    """One split of a recognised folder; None where it has no such split."""
    if kind == "svhn":
        return _svhn(folder, split)
    if kind == "LEAF":
        return _leaf(folder, split)
    entry = CATALOGUE[kind]
    path, names = _location(entry, folder), entry.members.get(split, ())
    assert path is not None, "recognise() saw it"
    found = _unpacked(path, names) if path.is_dir() else _packed(path, entry.folder, names)
    if not names or (split == "test" and not found):
        return None
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path} lacks {', '.join(missing)}: {', '.join(names)} are expected in it")
    members = {name: found[name] for name in names}  # in order
    return _cifar10(path, members) if kind == "cifar10" else _stl10(path, members)


def _location(entry: Entry, folder: Path) -> Path | None:
    """Where the members of an archive are: the unpacked folder, the folder itself, or the archive."""
    signs = {folder / entry.folder: "", folder: entry.members["train"][0], folder / entry.files[0].name: ""}
    return next((path for path, inside in signs.items() if (path / inside).exists()), None)


def _unpacked(folder: Path, names: tuple[str, ...]) -> dict[str, Bytes]:
    """Members as files. They are mapped, not read: the unlabelled images of STL-10 are 2.8 GB."""
    found: dict[str, Bytes] = {}
    for file in [folder / name for name in names if (folder / name).is_file()]:
        check_size(file, file.stat().st_size)  # a file can have holes
        empty = not file.stat().st_size  # which cannot be mapped
        # As a plain array: taking one image of a memmap object at a time is slow.
        found[file.name] = np.empty(0, np.uint8) if empty else np.asarray(np.memmap(file, dtype=np.uint8, mode="c"))
    return found


class _Unpacked(gzip.GzipFile):
    """The content of a compressed archive, up to the size that is allowed."""

    def read(self, size: int | None = -1) -> bytes:
        """Whatever a header of the archive announces, no more than that is read."""
        check_size(self.name, self.tell() + max(size or 0, 0))
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Skipping unpacks, too."""
        check_size(self.name, offset)
        return super().seek(offset, whence)


def _packed(file: Path, folder: str, names: tuple[str, ...]) -> dict[str, Bytes]:
    """Members of an archive, which is read no further than to the last of them."""
    found: dict[str, Bytes] = {}
    try:
        with _Unpacked(file) as content_of_all, tarfile.open(fileobj=content_of_all, mode="r:") as archive:
            for number, member in enumerate(archive):
                check_size(file, member.size)  # a sparse member has more than the archive
                if number >= MOST_MEMBERS:
                    raise DataError(f"{file} has more than {MOST_MEMBERS:,} members: {', '.join(names)} are expected")
                inner, _, name = member.name.removeprefix("./").rpartition("/")
                if inner == folder and name in names and member.isfile() and (content := archive.extractfile(member)):
                    found[name] = np.frombuffer(bytearray(content.read()), dtype=np.uint8)
                if len(found) == len(names):
                    break
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{_damaged(file)}: {first_line(error)}") from error
    return found


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
    file = folder / SVHN_FILES[split]
    if not file.is_file():
        if split == "test":
            return None
        raise DataError(f"{file} is missing: SVHN's '{split}' images are expected there")
    try:
        from scipy.io import loadmat, whosmat
    except ImportError:
        raise DataError(f"{file} is read by a package that is not installed: pip install 'cpfl[data]'") from None
    try:
        for name, shape, kind in whosmat(file):
            if name in ("X", "y"):
                check_size(file, 8 * math.prod(shape) if kind != "uint8" else math.prod(shape))
                if kind in ("cell", "struct", "object", "function", "opaque"):
                    raise ValueError(f"{name} is a {kind}, not an array of numbers")
        held = loadmat(file, variable_names=["X", "y"])
        x, y = np.asarray(held["X"]), np.asarray(held["y"]).reshape(-1).astype(np.int64)
    except DataError:
        raise
    except Exception as error:  # a truncated file makes scipy fail in many ways, none of them its own
        raise DataError(f"{_damaged(file)}: {first_line(error)}") from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or x.shape[3] != len(y):
        raise DataError(
            f"{file} holds X of {x.dtype} {x.shape} and {len(y)} labels: uint8 (32, 32, 3, N) and N labels are expected"
        )
    _expect_labels(file, y, 0, 10)
    return Samples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10)  # label 10 is the digit 0


def _leaf(folder: Path, split: str) -> Samples | None:
    """Pixels, labels and each sample's writer, from `<split>/*.json`, which list the samples by writer."""
    files = sorted((folder / split).glob("*.json"))
    users = [user for file in files for user in _leaf_users(file)]
    if files and not users:
        raise DataError(f"{folder / split} holds no samples: at least one user with one image is needed")
    if not users:
        return None
    writers, images, labels = zip(*users, strict=True)
    # LEAF divides pixels by 255; as bytes they take a quarter of the memory and match other image sets.
    pixels = np.rint(np.concatenate(images) * 255).astype(np.uint8).reshape(-1, 1, LEAF_SIDE, LEAF_SIDE)
    sizes = [len(some) for some in labels]
    check_size(files[0].parent, 4 * sum(sizes) * max(map(len, writers)))
    writer_id = np.repeat(as_text(files[0].parent, writers), sizes)
    return Samples(pixels, np.concatenate(labels), {"writer_id": writer_id})


def _leaf_users(file: Path) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.int64]]]:
    """Name, images and labels of every user that has any."""
    try:
        check_readable(file)
        held: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is truncated or not JSON: {first_line(error)}") from error
    if not isinstance(held, dict) or not {"users", "user_data"} <= held.keys() or not isinstance(held["users"], list):
        raise DataError(f"{file} is not LEAF's: an object with users, num_samples and user_data is expected")
    for user in held["users"]:
        has = f"user {str(user)[:80]!r} in {file} has"
        try:
            data = held["user_data"][user]
            images, labels = np.asarray(data["x"], dtype=np.float32), np.asarray(data["y"])
            if not images.size and not labels.size:
                continue
            images = images.reshape(len(images), -1)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(f"{has} no even lists x and y: {first_line(error)}") from error
        if len(images) != len(labels) or images.shape[1] != LEAF_SIDE**2:
            raise DataError(
                f"{has} {len(images)} images of {images.shape[1]} values and {len(labels)} labels: "
                f"images of {LEAF_SIDE**2} values and as many labels are expected"
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
            raise DataError(f"{has} labels of type {labels.dtype}, shape {labels.shape}: integers are expected")
        if not (images.min() >= 0 and images.max() <= 1):
            raise DataError(f"{has} pixels from {images.min()} to {images.max()}: 0 to 1 is allowed")
        if labels.max() >= 2**63:
            raise DataError(f"{has} the label {labels.max()}: labels number the classes from 0")
        yield str(user), images, labels.astype(np.int64)


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
