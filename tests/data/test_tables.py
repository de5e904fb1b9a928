"""Tables and arrays in csv, npz and parquet files: what is an input, a label, an id; what is refused."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cpfl
from cpfl.data import federated, sources
from cpfl.data.columns import SUFFIXES
from cpfl.data.given import Given
from cpfl.data.samples import Samples
from cpfl.data.tables import Roles
from cpfl.errors import DataError, SettingError

RNG = np.random.default_rng(3)
AGE, DOSE = RNG.integers(20, 80, 40), RNG.normal(size=40).round(3)
WARD, ILL = np.arange(40) % 4, (AGE > 50).astype(np.int64)
TABLE: dict[str, Any] = {"age": AGE, "dose": DOSE, "ward": WARD, "label": ILL}


def write(file: Path, columns: dict[str, Any]) -> Path:
    """The same columns in the format of the name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npz":
        np.savez(file, **{name: np.asarray(values) for name, values in columns.items()})
    elif file.suffix == ".parquet":
        pq.write_table(pa.table(columns), file)
    else:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(str(value) for value in row) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
    return file


def loaded(path: Path, split: str = "train", **roles: Any) -> Samples:
    found = sources.load(str(path), split, [], roles=Roles(**roles))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_is_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    for path in (write(tmp_path / f"one{suffix}", TABLE), write(tmp_path / "set" / f"train-0{suffix}", TABLE).parent):
        found = loaded(path, ids=("ward",))
        assert found.x.dtype == np.float32
        np.testing.assert_array_equal(found.x, np.stack([AGE, DOSE], axis=1).astype(np.float32))
        assert found.names == ("age", "dose")
        assert found.y is not None
        assert found.y.tolist() == ILL.tolist()
        assert found.columns["ward"].tolist() == WARD.tolist()
        public = loaded(path, "public", ids=("ward",))
        assert public.y is None
        np.testing.assert_array_equal(public.x, found.x)


def test_splits_by_file_name_and_parts_in_order(tmp_path: Path) -> None:
    for number, part in enumerate((slice(0, 15), slice(15, 30))):
        write(tmp_path / f"train-{number}.csv", {name: values[part] for name, values in TABLE.items()})
    write(tmp_path / "test.csv", {name: values[30:] for name, values in TABLE.items()})
    assert loaded(tmp_path).x[:, 0].tolist() == AGE[:30].tolist()
    assert loaded(tmp_path, "test").x[:, 0].tolist() == AGE[30:].tolist()
    write(tmp_path / "train-2.csv", {"dose": DOSE, "age": AGE, "ward": WARD, "label": ILL})
    with pytest.raises(DataError, match=r"train-2\.csv has the columns dose, age.*train-0\.csv age, dose"):
        loaded(tmp_path)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-00001-of-00002.parquet", TABLE)
    with pytest.raises(DataError, match="has 1 of the 2 files of split 'train'"):
        loaded(tmp_path)
    write(tmp_path / "data" / "train-00000-of-00002.parquet", TABLE)
    assert len(loaded(tmp_path)) == 80


@pytest.mark.parametrize("name", ["labels", "target", "y", "class", "diagnosis"])
def test_names_of_the_label_column(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.csv", {"age": AGE, "dose": DOSE, name: ILL})
    own = name == "diagnosis"
    found = loaded(path, label=name if own else "")
    assert found.names == ("age", "dose")
    assert found.y is not None
    assert found.y.tolist() == ILL.tolist()
    if own:
        with pytest.raises(DataError, match=r"no column of labels \(label, .*data\.label names another of age, dose"):
            loaded(path)


def test_truth_values_are_numbers(tmp_path: Path) -> None:
    found = loaded(write(tmp_path / "t.parquet", {"smokes": [True, False], "age": [30, 40], "label": [True, False]}))
    assert found.x.tolist() == [[1, 30], [0, 40]]
    assert found.y is not None
    assert found.y.tolist() == [1, 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [1e300, -1e300, 2.0**63])
def test_whole_labels_beyond_all_integers_stay_floats(tmp_path: Path, far: float) -> None:
    found = loaded(write(tmp_path / "t.csv", {"age": [30, 40], "y": [0.0, far]}))
    assert found.y is not None
    assert found.y.tolist() == [0.0, far]


def test_labels_that_only_an_objective_can_judge(tmp_path: Path) -> None:
    dose = loaded(write(tmp_path / "t.csv", {"age": [30, 40], "y": [0.5, 2]}))
    several = loaded(write(tmp_path / "t.npz", {"x": np.ones((3, 2)), "y": np.eye(3)}))
    assert dose.y is not None
    assert several.y is not None
    assert (dose.y.tolist(), several.y.tolist()) == ([0.5, 2], np.eye(3).tolist())
    path = write(tmp_path / "n.csv", {"age": AGE, "y": ["ill", "well"] * 20})
    experiment = cpfl.Experiment(clients=4, data={"train": str(path), "public": str(path)})
    own = experiment.model_copy(update={"model": experiment.model.model_copy(update={"objective": "regression"})})
    with pytest.raises(DataError, match=r"names as labels in 'y': model\.objective needs numbers"):
        federated.load(own, [], Given())


@pytest.mark.parametrize(("suffix", "name"), [(".csv", ""), (".parquet", "__index_level_0__")])
def test_the_index_that_pandas_writes_is_no_input(tmp_path: Path, suffix: str, name: str) -> None:
    file = write(tmp_path / f"frame{suffix}", {name: np.arange(40), **TABLE})
    found = loaded(file, ids=("ward",))
    assert found.names == ("age", "dose")
    assert np.array_equal(found.x, np.stack([AGE, DOSE], 1).astype(np.float32))


def test_two_columns_that_may_be_the_label(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {"age": AGE, "y": ILL, "class": WARD})
    with pytest.raises(DataError, match=r"columns y and class can both be labels: name one in data\.label"):
        loaded(path)
    assert loaded(path, label="y").names == ("age", "class")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_as_labels_are_numbered_over_all_splits(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"train{suffix}", {"age": AGE[:4], "class": ["sick", "well", "sick", "well"]})
    write(tmp_path / f"test{suffix}", {"age": AGE[:2], "class": ["well", "dead"]})
    train, test = loaded(tmp_path), loaded(tmp_path, "test")
    assert train.y is not None
    assert test.y is not None
    assert (train.y.tolist(), test.y.tolist()) == ([1, 2, 1, 2], [2, 0])
    assert sources.class_names(str(tmp_path), [], Roles()) == ["dead", "sick", "well"]


def test_a_table_in_a_folder_with_the_name_of_a_known_set(tmp_path: Path) -> None:
    write(tmp_path / "heart" / "train.csv", TABLE)
    for name in ("heart", str(tmp_path / "heart")):
        public = sources.load(name, "public", [tmp_path])
        assert public is not None
        assert public.names == ("age", "dose", "ward")
        assert sources.class_names(name, [tmp_path], Roles()) == []


def test_arrays_of_an_npz(tmp_path: Path) -> None:
    x = RNG.normal(size=(6, 3, 4)).astype(np.float16)
    found = loaded(write(tmp_path / "one.npz", {"x": x, "y": np.arange(6), "subject": np.arange(6) // 2}))
    assert (found.shape, found.x.dtype, found.fields) == ((3, 4), np.float32, ())
    np.testing.assert_array_equal(found.x, x.astype(np.float32))
    assert found.columns["subject"].tolist() == [0, 0, 1, 1, 2, 2]
    tokens, mask = RNG.integers(0, 9, (6, 5)), np.ones((6, 5), bool)
    both = loaded(write(tmp_path / "two.npz", {"ids": tokens, "mask": mask, "label": np.arange(6)[:, None]}))
    assert [(one.name, one.dtype, one.shape) for one in both.fields] == [("ids", "int64", (5,)), ("mask", "bool", (5,))]
    public = loaded(tmp_path / "two.npz", "public")
    assert public.fields == both.fields


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 5), pa.large_list(pa.int64())])
def test_lists_of_one_length_in_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    tokens = RNG.integers(0, 9, (6, 5))
    columns = {"tokens": pa.array(tokens.tolist(), kind), "label": np.arange(6), "who": ["a", "b"] * 3}
    found = loaded(write(tmp_path / "train-00000-of-00001.parquet", columns).parent)
    assert found.x.dtype == np.int64
    assert found.x.tolist() == tokens.tolist()
    assert found.columns["who"].tolist() == ["a", "b"] * 3
    nested = pa.array(RNG.normal(size=(6, 2, 3)).tolist())
    assert loaded(write(tmp_path / "n.parquet", {"x": nested, "label": np.arange(6)})).shape == (2, 3)


HOLE = [1.5, float("nan"), 2.0]
HUGE = np.array([0, 2**64 - 1, 2], np.uint64)
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("t.csv", {"age": ["1", "", "3"], "y": [0, 1, 0]}, r"column 'age' of .*t\.csv has no finite value in row 2: fill"),
    ("t.csv", {"age": [1, 2, 3], "y": [0, "", 0]}, r"column 'y' of .* has no finite value in row 2"),
    ("t.csv", {"age": [1, 2, 3], "y": ["a", "", "b"]}, r"column 'y' of .* has no label in row 2"),
    ("t.csv", {"a": [1, 2, 3], "ca": [1, "?", 2], "y": [0, 1, 0]}, r"'ca' of .* has '\?' in row 2 and mostly numbers"),
    ("t.csv", {"a": [1, 2, 3], "y": [0, "?", 1]}, r"column 'y' of .* has '\?' in row 2 and mostly numbers"),
    ("t.csv", {"age": [1, 1e300, 3], "y": [0, 1, 0]}, r"column 'age' of .* has numbers beyond 3\.40282e\+38"),
    ("t.csv", {"who": ["a", "b", "c"], "y": [0, 1, 0]}, "has no column of numbers beside labels and ids"),
    ("t.csv", {"age": [1, 2], "age,age": ["1,2", "2,3"], "y": [0, 1]}, r"t\.csv has 3 columns 'age': one is allowed"),
    ("t.csv", {"age": [1, 2], "dose": [1, "2,3"], "y": [0, 1]}, r"damaged or no \.csv file with names"),
    ("t.csv", {"age": [], "y": []}, r"column 'age' of .*t\.csv holds nothing: the table has no rows"),
    ("t.npz", {"x": np.array(HOLE), "y": [0, 1, 0]}, r"array 'x' of .* has no finite value in row 2"),
    ("t.npz", {"x": np.ones((3, 2)), "y": [0, 1]}, r"different numbers of samples: x 3, y 2"),
    (
        "t.npz",
        {"x": np.array([{}, []], object), "y": [0, 1]},
        "is damaged, no npz file or holds Python objects",
    ),
    ("t.npz", {"x": np.ones((3, 2), complex), "y": [0, 1, 0]}, "holds complex128: numbers, truth values or texts"),
    ("t.npz", {"x": np.array(1), "y": [0, 1]}, "is a single value: one for each sample is needed"),
    ("t.parquet", {"x": [1.0, None, 2.0], "y": [0, 1, 0]}, r"column 'x' of .* has no finite value in row 2"),
    ("t.parquet", {"x": HOLE, "y": [0, 1, 0]}, r"column 'x' of .* has no finite value in row 2"),
    ("t.parquet", {"x": [[1], [1, 2], [3]], "y": [0, 1, 0]}, "has lists of 1 to 2 values: all must have one length"),
    ("t.parquet", {"x": [[1, 2], [None, 2], [3, 4]], "y": [0, 1, 0]}, "a list in which a value is missing"),
    ("t.parquet", {"x": [["a"], ["b"], ["c"]], "y": [0, 1, 0]}, "has lists of string: lists of numbers without gaps"),
    (
        "t.npz",
        {"x": HUGE.reshape(3, 1), "y": [0, 1, 0]},
        rf"an integer of array 'x' of .*t\.npz is {2**64 - 1}: at most",
    ),
    ("t.npz", {"x": np.ones((3, 2)), "y": HUGE}, rf"an integer of column 'y' of .* is {2**64 - 1}: at most"),
    ("t.parquet", {"x": [1, 2, 3], "y": HUGE}, rf"an integer of column 'y' of .* is {2**64 - 1}: at most"),
    ("t.parquet", {"x": [{"a": 1}] * 3, "y": [0, 1, 0]}, "images are read from a column called image or img"),
]


@pytest.mark.parametrize(("name", "columns", "sentence"), BAD, ids=lambda part: str(part)[:20])
def test_what_is_refused(tmp_path: Path, name: str, columns: dict[str, Any], sentence: str) -> None:
    path = write(tmp_path / name, columns)
    with pytest.raises(DataError, match=sentence):
        loaded(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"t{suffix}", TABLE)
    path.write_bytes(path.read_bytes()[:100] + bytes(range(128, 255)))
    with pytest.raises(DataError, match=r"damaged|columns"):
        loaded(path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"train\.csv is not a file: a \.csv file is expected there"):
        loaded(tmp_path)


def test_a_small_file_that_unpacks_to_more_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.npz"
    np.savez_compressed(path, x=np.zeros((1000, 1000)), y=np.zeros(1000, int))
    monkeypatch.setenv("CPFL_MAX_GB", "0.001")
    with pytest.raises(DataError, match=r"t\.npz unpacks to 0\.0 GB or more"):
        loaded(path)
    with zipfile.ZipFile(path, "a") as archive, archive.open("z.npy", "w") as stream:  # a header and nothing behind it
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})  # type: ignore[arg-type]
    monkeypatch.setenv("CPFL_MAX_GB", "4")
    with pytest.raises(DataError, match=r"t\.npz unpacks to 8,000\.0 GB or more"):
        loaded(path)


def test_columns_of_the_public_set_must_be_those_of_training(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", TABLE)
    settings: dict[str, Any] = {"clients": 4, "cohorts": 2}
    for columns, message in (
        ({"dose": DOSE, "age": AGE}, "the public set's columns are dose, age, the training set's age, dose"),
        ({"age": AGE, "weight": DOSE}, "columns are age, weight, the"),
        ({"age": AGE}, "the public set's columns are age, the training set's age, dose"),
    ):
        data = {"train": str(train), "public": str(write(tmp_path / "p.csv", columns))}
        experiment = cpfl.Experiment(**settings, data=data | {"split": "column", "column": "ward"})
        with pytest.raises(DataError, match=message):
            federated.load(experiment, [], Given())


def test_a_label_column_where_there_is_no_table() -> None:
    with pytest.raises(SettingError, match=r"data\.label = 'x' names a column of a table .*'digits' are known"):
        federated.load(cpfl.Experiment(data={"label": "x"}), [], Given())


def test_a_run_on_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four wards as clients, two cohorts, from the names of files alone; classes have names."""
    monkeypatch.chdir(tmp_path)
    names = np.where(ILL == 1, "ill", "well")
    write(tmp_path / "patients.csv", {**TABLE, "ward": [f"w{ward}" for ward in WARD], "label": names})
    write(tmp_path / "others.csv", {"age": AGE[::-1], "dose": DOSE})
    experiment = cpfl.Experiment(
        cohorts=2,
        clients=4,
        max_rounds=2,
        data={"train": "patients.csv", "public": "others.csv", "split": "column", "column": "ward"},
        distillation={"epochs": 2},
    )
    run = cpfl.run(experiment, engine="reference", device="cpu", out=tmp_path / "run")
    assert run.summary["clients"] == 4
    assert cpfl.resume(tmp_path / "run").summary == run.summary


def test_a_quick_test_with_fewer_clients_than_the_column_names(tmp_path: Path) -> None:
    """A limit of samples leaves the first owners only, where a file has one after the other."""
    train, public = {**TABLE, "ward": np.arange(40) // 10}, {"age": AGE, "dose": DOSE}
    data = {"train": str(write(tmp_path / "t.csv", train)), "public": str(write(tmp_path / "p.csv", public))}
    data |= {"train_limit": 15, "split": "column", "column": "ward"}
    words = r"clients = 4 is more than the 2 values .* \(data.train_limit = 15\): set clients = 2 or fewer"
    with pytest.raises(DataError, match=words):
        federated.load(cpfl.Experiment(clients=4, data=data), [], Given())
