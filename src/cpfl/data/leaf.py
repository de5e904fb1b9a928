"""FEMNIST as LEAF writes it: `train/*.json` and `test/*.json`, the samples listed by writer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.samples import Samples
from cpfl.errors import DataError

SIDE = 28


def splits(folder: Path) -> list[str]:
    """The splits that the folder holds."""
    return [split for split in ("test", "train") if _files(folder, split)]


def read(folder: Path, split: str) -> Samples | None:
    """One split, or None where it is not there: pixels, labels and each sample's writer."""
    files = _files(folder, split)
    if not files:
        return None
    users = [user for file in files for user in _users(file)]
    writers = np.repeat([writer for writer, _, _ in users], [len(labels) for _, _, labels in users])
    if not len(writers):
        raise DataError(f"{folder / split} holds no samples: at least one user with one image is needed")
    # LEAF divides pixels by 255; as bytes they take a quarter of the memory and match other image sets.
    pixels = np.rint(np.concatenate([images for _, images, _ in users]) * 255).astype(np.uint8)
    y = np.concatenate([labels for _, _, labels in users])
    return Samples(pixels.reshape(-1, 1, SIDE, SIDE), y, {"writer_id": writers.astype(np.str_)})


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / split).glob("*.json"))


def _users(file: Path) -> list[tuple[str, NDArray[np.float32], NDArray[np.int64]]]:
    try:
        held: Any = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is truncated or not JSON: {error}") from error
    if not isinstance(held, dict) or not {"users", "user_data"} <= held.keys():
        raise DataError(f"{file} is not LEAF's: an object with users, num_samples and user_data is expected")
    return [(str(user), *_user(file, user, held["user_data"])) for user in held["users"]]


def _user(file: Path, user: Any, data: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    try:
        images = np.asarray(data[user]["x"], dtype=np.float32)
        labels = np.asarray(data[user]["y"])
        if not images.size and not labels.size:
            return np.empty((0, SIDE * SIDE), dtype=np.float32), np.empty(0, dtype=np.int64)
        images = images.reshape(len(images), -1)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"user '{user}' in {file} has no even lists x and y: {error!r}") from error
    if len(images) != len(labels) or images.shape[1] != SIDE * SIDE:
        raise DataError(
            f"user '{user}' in {file} has {len(images)} images of {images.shape[1]} values and {len(labels)} labels: "
            f"images of {SIDE * SIDE} values and as many labels are expected"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"user '{user}' in {file} has labels of type {labels.dtype}: integers are expected")
    if not (images.min() >= 0 and images.max() <= 1):
        raise DataError(f"user '{user}' in {file} has pixels from {images.min()} to {images.max()}: 0 to 1 is allowed")
    return images, labels.astype(np.int64)
