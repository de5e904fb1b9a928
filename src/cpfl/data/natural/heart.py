"""UCI's heart disease patients of four hospitals: a small table with gaps, and a diagnosis.

The split is a rule. Patients that are equal in every value count once. Those of a hospital with disease, and those
without, are put in the order of their values; of every four, two train, one is tested on, one is public. So test and
public set have every hospital's share of patients and of disease, in whatever order a file lists them.

What is missing: a category has none of its columns set, a number becomes the mean, which is 0 after standardization.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpfl.data.limit import check_size
from cpfl.data.samples import Samples
from cpfl.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
NUMBERS = {  # mean and standard deviation of all hospitals' training patients, without missing ones
    "age": (53.42, 9.517),
    "trestbps": (131.7, 17.91),
    "chol": (248.8, 55.47),
    "thalach": (138.8, 25.50),
    "oldpeak": (0.9203, 1.132),
    "ca": (0.7105, 0.9293),
}
CATEGORIES = {"sex": 2, "cp": 4, "fbs": 2, "restecg": 3, "exang": 2, "slope": 3, "thal": 3}
CODES = {"cp": (1, 2, 3, 4), "slope": (1, 2, 3), "thal": (3, 6, 7)}  # others count from 0
LARGEST = 10_000.0  # of any value
MISSING = -9.0  # as in the files, beside a question mark
DIAGNOSIS = {"not_present": 0, "present": 1}  # or 0 to 4, where all but 0 are disease
DIVISION = ("train", "test", "train", "public")

Patient = tuple[float, ...]
"""The values of COLUMNS."""


def found(folder: Path) -> bool:
    """Whether a folder holds the files of all hospitals."""
    return all(_file(folder, hospital) is not None for hospital in HOSPITALS)


def read(folder: Path, split: str) -> Samples | None:
    """The patients of one split: encoded values, disease (1) or none (0), and the hospital."""
    if split not in DIVISION:
        return None
    chosen = list[tuple[str, int, Patient]]()
    for hospital in HOSPITALS:
        file = _file(folder, hospital)
        assert file is not None, "found() saw it"
        patients = sorted(set(_patients(file)))
        for disease in sorted(DIAGNOSIS.values()):
            ordered = [values for label, values in patients if label == disease]
            places = (place for place in range(len(ordered)) if DIVISION[place % len(DIVISION)] == split)
            chosen += [(hospital, disease, ordered[place]) for place in places]
    if not chosen:
        raise DataError(f"{folder} has too few patients for the split '{split}'")
    hospitals, labels, patients_of = zip(*chosen, strict=True)
    x, names = encoded(np.array(patients_of))
    return Samples(x, np.array(labels, np.int64), {"hospital": np.array(hospitals)}, names=names)


def encoded(values: NDArray[np.float64]) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Numbers standardized, a column for every code of a category; and what these columns are called."""
    found: dict[str, NDArray[np.float64]] = {}
    for place, name in enumerate(COLUMNS):
        held = values[:, place]
        if name in NUMBERS:
            mean, std = NUMBERS[name]
            found[name] = np.where(held == MISSING, 0, (held - mean) / std)
            continue
        for code in CODES.get(name, range(CATEGORIES[name])):
            found[f"{name}={code}"] = (held == code).astype(np.float64)
    return np.stack(list(found.values()), axis=1).astype(np.float32), tuple(found)


def _file(folder: Path, hospital: str) -> Path | None:
    names = (f"processed.{hospital}.data", f"reprocessed.{hospital}.data")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _patients(file: Path) -> list[tuple[int, Patient]]:
    """Diagnosis and values of every patient; values between commas or spaces, under a line of names or without."""
    check_size(file, 8 * file.stat().st_size)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    patients = []
    for number, line in enumerate(lines, 1):
        words = [word.strip("'\"") for word in re.split(r"[,\s]+", line.strip()) if word]
        if not words or words[0] == COLUMNS[0]:
            continue
        where = f"line {number} of {file}"
        if len(words) != len(COLUMNS) + 1:
            raise DataError(f"{where} has {len(words)} values: {len(COLUMNS)} and a diagnosis are expected")
        values = tuple(_value(name, word, where) for name, word in zip(COLUMNS, words, strict=False))
        patients.append((_diagnosis(words[-1], where), values))
    return patients


def _diagnosis(word: str, where: str) -> int:
    if word in DIAGNOSIS:
        return DIAGNOSIS[word]
    if word not in ("0", "1", "2", "3", "4"):
        raise DataError(f"{where} has the diagnosis {word[:80]!r}: 0 to 4, present or not_present is expected")
    return int(word != "0")


def _value(name: str, word: str, where: str) -> float:
    """A number, or MISSING: also where nobody can have this value."""
    try:
        value = MISSING if word == "?" else float(word)
    except ValueError:
        value = np.nan
    if not abs(value) < LARGEST:
        raise DataError(f"{where} has {word[:80]!r} as {name}: a number, -9 or ? is expected")
    if name in ("trestbps", "chol") and value == 0:
        return MISSING  # nobody has none; Switzerland wrote 0 for every patient's cholesterol
    if name == "ca" and value > 3:
        return MISSING  # of three vessels
    if name in CATEGORIES and value not in (MISSING, *CODES.get(name, range(CATEGORIES[name]))):
        raise DataError(f"{where} has {word[:80]!r} as {name}, which is no code of it")
    return value
