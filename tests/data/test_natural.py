"""Published sets with a natural split, from small files made in the publishers' formats."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpfl.data import sources
from cpfl.data.catalogue import CATALOGUE
from cpfl.data.natural import har, heart, shakespeare
from cpfl.data.samples import Samples, shared_images
from cpfl.data.tables import Roles
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
    (tmp_path / "heart").rename(tmp_path / "clinics")
    assert shared_images({**sets, "again": three("clinics", tmp_path)["public"]})[0].images == 16
    assert sources.class_names("clinics", [tmp_path], Roles()) == ["no disease", "disease"]


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


def windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two windows of each of 30 people, smooth in time; activities, and people from 1."""
    people = np.repeat(np.arange(1, 31), 2)
    time = np.linspace(0, 3, har.STEPS)
    phases = np.arange(len(people) * len(har.SIGNALS)).reshape(len(people), len(har.SIGNALS), 1)
    x = np.sin(time + phases) + np.arange(len(har.SIGNALS))[:, None]
    return x.astype(np.float32), np.arange(len(people)) % har.ACTIVITIES, people


def har_files(at: dict[str, np.ndarray]) -> dict[str, str]:
    """The published text files, by name: numbers with spaces before them, activities and people from 1."""
    x, y, people = windows()
    files = {}
    for part, chosen in at.items():
        for place, signal in enumerate(har.SIGNALS):
            lines = ["".join(f" {value: .7e}" for value in row) for row in x[chosen, place]]
            files[f"{part}/Inertial Signals/{signal}_{part}.txt"] = "\n".join(lines) + "\n"
        files[f"{part}/y_{part}.txt"] = "\n".join(str(label + 1) for label in y[chosen]) + "\n"
        files[f"{part}/subject_{part}.txt"] = "\n".join(map(str, people[chosen])) + "\n"
    return files


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def write_har(folder: Path, form: str) -> Path:
    """The set as it is published, as the archive in that one, unpacked, or as arrays in either order of axes."""
    folder.mkdir(parents=True)
    x, y, people = windows()
    tested = np.isin(people, har.TESTED)
    at = {"train": np.flatnonzero(~tested), "test": np.flatnonzero(tested)}
    if form.startswith("arrays"):
        for part, chosen in at.items():
            held = x[chosen].swapaxes(1, 2) if form == "arrays, steps first" else x[chosen]
            if form == "arrays, steps first and said otherwise":
                held = np.ascontiguousarray(x[chosen].swapaxes(1, 2)).reshape(x[chosen].shape)
            np.savez(folder / f"{part}.npz", x=held.astype(np.float16), y=y[chosen], subject=people[chosen] - 1)
        return folder
    files = {f"{har.FOLDER}/{name}": text.encode() for name, text in har_files(at).items()}
    if form == "unpacked":
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder
    inner = zipped(files)
    if form == "archive":
        (folder / har.ARCHIVES[1]).write_bytes(inner)
    else:
        (folder / har.ARCHIVES[0]).write_bytes(zipped({har.ARCHIVES[1]: inner}))
    return folder


ARRAYS = ("arrays", "arrays, steps first", "arrays, steps first and said otherwise")


@pytest.mark.parametrize("form", ["archive in an archive", "archive", "unpacked", *ARRAYS])
def test_har(tmp_path: Path, form: str) -> None:
    write_har(tmp_path / "har", form)
    sets = three("har", tmp_path)
    x, y, people = windows()
    for split, samples in sets.items():
        chosen = np.flatnonzero(np.isin(people, har.PEOPLE[split]))
        np.testing.assert_allclose(samples.x, x[chosen], atol=1e-2 if form in ARRAYS else 1e-6)
        if split != "public":
            assert samples.y is not None
            assert samples.y.tolist() == y[chosen].tolist()
            assert samples.columns["subject"].tolist() == people[chosen].tolist()
    assert shared_images(sets) == []
    assert sets["train"].shape == CATALOGUE["har"].shape


def test_people_of_har() -> None:
    every = [person for people in har.PEOPLE.values() for person in people]
    assert sorted(every) == list(range(1, 31))
    assert {split: len(people) for split, people in har.PEOPLE.items()} == {"train": 16, "test": 9, "public": 5}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("train/y_train.txt", None, r"train/y_train\.txt is missing in"),
        ("train/y_train.txt", "1\n2\n", "60 windows, 20 activities and 60 people: as many of each"),
        ("test/y_test.txt", "7\n" * 18, "activities or people beyond the 6 and 30"),
        ("test/subject_test.txt", "two\n", r"subject_test\.txt in .* is damaged"),
        ("train/Inertial Signals/body_acc_x_train.txt", "1 2 3\n", r"body_acc_x_train\.txt .* 128 numbers in a line"),
    ],
)
def test_damaged_har(tmp_path: Path, name: str, content: str | None, sentence: str) -> None:
    file = write_har(tmp_path / "har", "unpacked") / har.FOLDER / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(DataError, match=sentence):
        three("har", tmp_path)


def test_truncated_archive_of_har(tmp_path: Path) -> None:
    file = write_har(tmp_path / "har", "archive") / har.ARCHIVES[1]
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"UCI HAR Dataset\.zip is truncated or damaged"):
        three("har", tmp_path)


def speeches(roles: int) -> dict[str, list[str]]:
    """Texts in which no stretch of 81 characters comes twice, the later roles longer."""
    words = iter(range(100_000))
    return {
        f"play:ROLE {role:02}": [" ".join(f"w{next(words)}" for _ in range(150 + role)) for _ in range(4)]
        for role in range(roles)
    }


def write_shakespeare(folder: Path, texts: dict[str, list[str]], form: str = "raw") -> Path:
    """By role, compressed; or LEAF's json with every character as a label, or with a whole text."""
    folder.mkdir(parents=True)
    whole = {role: "\n".join(said) for role, said in texts.items()}
    data: dict[str, dict[str, object]] = {
        "raw": {role: {"raw": said} for role, said in texts.items()},
        "text": {role: {"raw": text} for role, text in whole.items()},
        "x and y": {role: {"x": [" " * 80] * len(text), "y": list(text)} for role, text in whole.items()},
    }[form]
    content = json.dumps({"users": list(texts), "num_samples": [1] * len(texts), "user_data": data}).encode()
    if form == "raw":
        (folder / "by_role.json.gz").write_bytes(gzip.compress(content))
    else:
        (folder / "all_data").mkdir()
        (folder / "all_data" / "all_data.json").write_bytes(content)
    return folder


def test_shakespeare(tmp_path: Path) -> None:
    texts = speeches(12)
    found = []
    for form in ("raw", "text", "x and y"):
        write_shakespeare(tmp_path / form / "shakespeare", texts, form)
        found.append(three("shakespeare", tmp_path / form))
    for other in found[1:]:
        for split, samples in other.items():
            np.testing.assert_array_equal(samples.x, found[0][split].x)
    sets = found[0]
    assert shared_images(sets) == []
    assert sets["train"].x.dtype == np.uint8
    roles = sorted(texts)
    public = roles[shakespeare.PUBLIC_EVERY - 1 :: shakespeare.PUBLIC_EVERY]
    assert len(sets["public"]) == len(public) * shakespeare.WINDOWS["public"]
    for split in ("train", "test"):
        samples = sets[split]
        assert sorted(set(samples.columns["role"].tolist())) == [role for role in roles if role not in public]
        assert samples.y is not None
        for window, next_one, role in zip(samples.x, samples.y, samples.columns["role"], strict=True):
            text = "\n".join(texts[role])
            border = int(shakespeare.TRAINED * len(text))
            held = "".join(shakespeare.CHARACTERS[number] for number in (*window, next_one))
            assert held in (text[:border] if split == "train" else text[border:])


def test_characters_of_shakespeare() -> None:
    assert len(set(shakespeare.CHARACTERS)) == 80
    assert shakespeare.numbered("\nz}").tolist() == [0, 78, 79]
    assert set(shakespeare.numbered("$é€\ud800{").tolist()) == {shakespeare.CHARACTERS.index(" ")}


def test_few_or_short_roles(tmp_path: Path) -> None:
    texts = speeches(4) | {f"play:SERVANT {number}": ["Ay, my lord."] for number in range(9)}
    write_shakespeare(tmp_path / "shakespeare", texts)
    with pytest.raises(DataError, match="has 4 roles with enough text: 5 or more are needed"):
        three("shakespeare", tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"by_role\.json\.gz is truncated or not JSON"),
        (b"[1]", "is not LEAF's: an object with users"),
        (b'{"users": ["a"], "user_data": {"a": {}}}', "user 'a' in .* has no texts raw, or x and y"),
        (b'{"users": ["a"], "user_data": {"a": {"raw": [1]}}}', "user 'a' in .* has no texts raw"),
    ],
)
def test_damaged_shakespeare(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = write_shakespeare(tmp_path / "shakespeare", speeches(5)) / "by_role.json.gz"
    file.write_bytes(b"no gzip" if content is None else gzip.compress(content))
    with pytest.raises(DataError, match=sentence):
        three("shakespeare", tmp_path)


def test_a_text_that_unpacks_to_more_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_shakespeare(tmp_path / "shakespeare", speeches(5)) / "by_role.json.gz"
    file.write_bytes(gzip.compress(b" " * 2_000_000))
    monkeypatch.setenv("CPFL_MAX_GB", "0.004")
    with pytest.raises(DataError, match=r"by_role\.json\.gz unpacks to"):
        three("shakespeare", tmp_path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("har", lambda folder: write_har(folder, "unpacked")),
        ("heart", write_heart),
        ("shakespeare", lambda folder: write_shakespeare(folder, speeches(6))),
    ],
)
def test_from_the_command_line(
    name: str, write: Callable[[Path], Path], cpfl_command: Callable[..., Any], tmp_path: Path
) -> None:
    """A set is listed where it lies, and its three parts share nothing; what it has no part of is said."""
    write(tmp_path / "data" / name)
    clients = ("--set", "clients=4", "--set", "cohorts=2")
    listed = {one["name"]: one for one in cpfl_command("data", "list", "--json", "--data", "data").good().json}
    assert listed[name]["format"] == name
    assert listed[name]["downloadable"] == bool(CATALOGUE[name].files)
    cpfl_command("data", "check", name, "--data", "data", *clients).good()
    answer = cpfl_command("data", "check", name, "--data", "data", *clients, "--set", "data.public_splits=extra")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "has no 'extra' split" in answer.err
    assert "it has train, test, public" in answer.err
