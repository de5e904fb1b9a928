"""Published sets with a natural split, from small files made in the publishers' formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.data.natural import heart
from cpfl.data.samples import Samples, shared_images
from cpfl.errors import DataError

SPLITS = ("train", "test", "public")


def three(name: str, root: Path) -> dict[str, Samples]:
    """The training, test and public set of a folder below `root`, as a run loads them."""
    found = {split: sources.load(name, split, [root]) for split in SPLITS}  # type: ignore[arg-type]
    return {split: samples for split, samples in found.items() if samples is not None}


def patient(age: int, diagnosis: object, *, chol: object = 200, ca: object = 0, thal: object = 3) -> list[object]:
    return [age, 1, 4, 130, chol, 0, 0, 150, 0, 1.0, 2, ca, thal, diagnosis]


def write_heart(folder: Path) -> Path:
    """Every form that there is: commas or spaces, with names or without, 0 to 4 or words."""
    folder.mkdir(parents=True)
    for number, hospital in enumerate(heart.HOSPITALS):
        words = number == 1
        sick, well = ("'present'", "'not_present'") if words else (1 + number, 0)
        rows = [patient(30 + place + 20 * number, sick if place % 2 else well) for place in range(16)]
        rows = [*rows[::-1], rows[3]]  # the order says nothing, and a patient counts once
        kind = "reprocessed" if words else "processed"
        lines = [",".join((*heart.COLUMNS, "num"))] if words else []
        lines += [(" " if number == 2 else ",").join(map(str, row)) for row in rows]
        (folder / f"{kind}.{hospital}.data").write_text("\n".join(lines) + "\n")
    return folder


def test_heart(tmp_path: Path) -> None:
    write_heart(tmp_path / "heart")
    sets = three("heart", tmp_path)
    assert [len(sets[split]) for split in SPLITS] == [32, 16, 16]
    assert shared_images(sets) == []
    for split in ("train", "test"):
        hospitals, counts = np.unique(sets[split].columns["hospital"], return_counts=True)
        assert hospitals.tolist() == list(heart.HOSPITALS)
        assert len(set(counts)) == 1
        assert sets[split].y is not None
        assert sets[split].y.mean() == 0.5
    assert (sets["public"].y, sets["public"].columns) == (None, {})
    assert sets["train"].shape == CATALOGUE["heart"].shape
    assert sources.describe("heart", [tmp_path]).format == "heart"


def test_missing_values_of_heart() -> None:
    """A number becomes the mean, a category none of its codes."""
    whole = [float(value) for value in patient(60, 0)[:-1]]  # type: ignore[arg-type]
    gaps = [*whole[:4], heart.MISSING, *whole[5:12], heart.MISSING]
    x, names = heart.encoded(np.array([whole, gaps]))
    assert len(names) == 25
    at = {name: place for place, name in enumerate(names)}
    mean, std = heart.NUMBERS["chol"]
    assert x[:, at["chol"]].tolist() == [np.float32((200 - mean) / std), 0]
    assert x[0, [at[f"thal={code}"] for code in (3, 6, 7)]].tolist() == [1, 0, 0]
    assert x[1, [at[f"thal={code}"] for code in (3, 6, 7)]].tolist() == [0, 0, 0]


def test_what_counts_as_missing_in_heart(tmp_path: Path) -> None:
    folder = write_heart(tmp_path / "heart")
    rows = [patient(40 + place, 0, chol=(0, "?", -9, "-9.0")[place % 4], ca=9, thal="?") for place in range(8)]
    (folder / "processed.va.data").write_text("\n".join(",".join(map(str, row)) for row in rows))
    for split, samples in three("heart", tmp_path).items():
        if split != "public":
            x = samples.x[samples.columns["hospital"] == "va"]
            at = [place for place, name in enumerate(samples.names) if name.startswith(("chol", "ca", "thal="))]
            assert not x[:, at].any()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("63,1,4", r"line 17 of .*processed\.va\.data has 3 values: 13 and a diagnosis are expected"),
        (",".join(map(str, patient(50, 5))), "line 17 of .* has the diagnosis '5': 0 to 4, present or not_present"),
        (",".join(map(str, patient(50, 0, chol="high"))), "has 'high' as chol: a number, -9 or \\? is expected"),
        (",".join(map(str, patient(50, 0, thal=5))), "has '5' as thal, which is no code of it"),
    ],
)
def test_damaged_heart(tmp_path: Path, row: str, sentence: str) -> None:
    file = write_heart(tmp_path / "heart") / "processed.va.data"
    file.write_text("\n".join([*file.read_text().splitlines()[:16], row]))
    with pytest.raises(DataError, match=sentence):
        three("heart", tmp_path)
