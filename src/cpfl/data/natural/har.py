"""UCI's Human Activity Recognition Using Smartphones: 30 people, six activities, windows of nine sensor signals.

The split is by people, as windows overlap by half and the halves of one must not be in two sets. UCI's own nine
test people are tested on. Of its 21 training people, in the order of their numbers, every fourth is left out as public,
beginning with the second; the other 16 are clients.
"""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.columns import npy_header
from cpfl.data.columns import read as read_columns
from cpfl.data.limit import check_size
from cpfl.data.parquet import cached
from cpfl.data.samples import Samples
from cpfl.errors import DataError, first_line

SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
STEPS = 128  # of a window, 50 in a second
ACTIVITIES = 6
LARGEST = 1e6  # beyond any acceleration or turning
TESTED = (2, 4, 9, 10, 12, 13, 18, 20, 24)
TRAINING = tuple(person for person in range(1, 31) if person not in TESTED)
PUBLIC = TRAINING[1::4]
PEOPLE = {"train": tuple(one for one in TRAINING if one not in PUBLIC), "test": TESTED, "public": PUBLIC}
ARCHIVES = ("human+activity+recognition+using+smartphones.zip", "UCI HAR Dataset.zip")
FOLDER = "UCI HAR Dataset"
PARTS = ("train", "test")  # of the published files, which are read together

Opened = Callable[[str], bytes]
"""The content of a published file, by its name below FOLDER."""


def found(folder: Path) -> bool:
    """Whether a folder holds the published archive, what is in it, or arrays of its windows."""
    if any((folder / name).is_file() for name in ARCHIVES) or (folder / FOLDER / "train").is_dir():
        return True
    return all(_has_windows(folder / f"{part}.npz") for part in PARTS)


def read(folder: Path, split: str) -> Samples | None:
    """The windows of one split's people: signals (S, 9, 128), activities from 0, and people from 1."""
    if split not in PEOPLE:
        return None
    archive = next((folder / name for name in ARCHIVES if (folder / name).is_file()), None)
    if archive is None and not (folder / FOLDER).is_dir():
        files = [folder / f"{part}.npz" for part in PARTS]
        x = cached(files, lambda: np.concatenate([_in_order(read_columns([file])["x"]) for file in files]))
        held = read_columns(files, ["y", "subject"])
        y, people = held["y"], np.asarray(held["subject"], np.int64) + 1
    else:
        of = _archived(archive) if archive is not None else _unpacked(folder / FOLDER)
        where = str(archive or folder / FOLDER)
        files = [archive] if archive is not None else sorted((folder / FOLDER).glob("*/Inertial Signals/*.txt"))
        x = cached(files, lambda: np.concatenate([_signals(of, part, where) for part in PARTS]))
        y = np.concatenate([_numbers(of, f"{part}/y_{part}.txt", where) for part in PARTS]).astype(np.int64) - 1
        every = [_numbers(of, f"{part}/subject_{part}.txt", where) for part in PARTS]
        people = np.concatenate(every).astype(np.int64)
    if not len(x) == len(y) == len(people):
        raise DataError(f"{folder} has {len(x)} windows, {len(y)} activities and {len(people)} people: as many of each")
    if len(y) and not (y.min() >= 0 and y.max() < ACTIVITIES and people.min() >= 1 and people.max() <= 30):
        raise DataError(f"{folder} has activities or people beyond the {ACTIVITIES} and 30 of the set")
    chosen = np.flatnonzero(np.isin(people, PEOPLE[split]))
    if not len(chosen):
        raise DataError(f"{folder} has no windows of the people of the split '{split}': {PEOPLE[split]}")
    return Samples(x[chosen], np.asarray(y[chosen], np.int64), {"subject": people[chosen]})


def _has_windows(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            shape = npy_header(archive, "x.npy")[1:3]
            return {"y.npy", "subject.npy"} <= set(archive.namelist()) and sorted(shape) == [len(SIGNALS), STEPS]
    except Exception:  # a damaged archive fails in many ways, and is none of this set
        return False


def _in_order(x: NDArray[Any]) -> NDArray[np.float32]:
    """Windows as (S, 9, 128). Some files say so and hold the 128 steps of nine signals: signals are smooth in time."""
    windows = x.astype(np.float32)
    steps_first = windows.reshape(len(x), STEPS, len(SIGNALS)).swapaxes(1, 2)
    if x.shape[1:] == (len(SIGNALS), STEPS) and _roughness(windows) <= _roughness(steps_first):
        return windows
    return np.ascontiguousarray(steps_first)


def _roughness(windows: NDArray[np.float32]) -> float:
    return float(np.abs(np.diff(windows, axis=2)).mean())


def _signals(of: Opened, part: str, where: str) -> NDArray[np.float32]:
    """All signals of one part, (S, 9, 128), from a text file for each."""
    names = [f"{part}/Inertial Signals/{signal}_{part}.txt" for signal in SIGNALS]
    every = [_numbers(of, name, where) for name in names]
    for name, values in zip(names, every, strict=True):
        if values.ndim != 2 or values.shape != (len(every[0]), STEPS):
            raise DataError(f"{name} in {where} has the shape {values.shape}: {STEPS} numbers in a line are expected")
    return np.stack(every, axis=1).astype(np.float32)


def _numbers(of: Opened, name: str, where: str) -> NDArray[np.float64]:
    try:
        content = of(name)
        if not content.strip():
            raise ValueError("it is empty")
        values = np.loadtxt(io.BytesIO(content), ndmin=2 if "Inertial" in name else 1)
        if not (np.abs(values) < LARGEST).all():
            raise ValueError("not all of it are numbers of a sensor")
        return values
    except DataError:
        raise
    except (KeyError, FileNotFoundError) as error:
        raise DataError(f"{name} is missing in {where}") from error
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"{name} in {where} is damaged: {first_line(error)}") from error


def _unpacked(folder: Path) -> Opened:
    def content(name: str) -> bytes:
        check_size(folder / name, (folder / name).stat().st_size)
        return (folder / name).read_bytes()

    return content


def _archived(file: Path) -> Opened:
    """Files of the published archive, which holds another one, or of that one."""
    try:
        archive = zipfile.ZipFile(file)
        if ARCHIVES[1] in archive.namelist():
            check_size(file, archive.getinfo(ARCHIVES[1]).file_size)
            archive = zipfile.ZipFile(io.BytesIO(archive.read(ARCHIVES[1])))
    except DataError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"{file} is truncated or damaged: {first_line(error)}") from error

    def content(name: str) -> bytes:
        check_size(file, archive.getinfo(f"{FOLDER}/{name}").file_size)
        return archive.read(f"{FOLDER}/{name}")

    return content
