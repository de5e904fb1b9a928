"""Tables that users have in Python: frames, Hugging Face datasets, items of a Dataset; what their columns become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tests.data.forms import (
    BY_COLUMN,
    RNG,
    Rows,
    X,
    Y,
    columns,
    hugging_face,
    pandas,
    read,
)
from tests.pages import blocks, find

from cpfl.errors import DataError, SettingError
from cpfl.task.loading import given_arrays

TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "no label": (
        {"a": [1.0, 2.0], "b": [0, 1]},
        "none is called label, labels, target, y, class: name it in data.label",
    ),
    "two labels": ({"a": [1.0], "y": [0], "label": [0]}, "'y', 'label' could all be the label"),
    "no inputs": ({"a": ["x", "y"], "y": [0, 1]}, "none but 'y' holds numbers or arrays"),
    "missing number": (
        {"a": [1.0, None, None], "y": [0, 1, 0]},
        r"'a' has no finite value in row 1, counted from 0 \(2 rows",
    ),
    "missing integer": ({"a": [1, 2, None], "y": [0, 1, 0]}, "'a' has no finite value in row 2"),
    "missing label": ({"a": [1, 2, 3], "y": [0, None, 0]}, "'y' has no finite value in row 1"),
    "missing name": ({"a": [1, 2, 3], "y": ["p", "q", None]}, "'y' has no finite value in row 2"),
    "infinite": ({"a": [1.0, np.inf], "y": [0, 1]}, "'a' has no finite value in row 1"),
    "several lengths": (
        {"a": [[1, 2], [3]], "y": [0, 1]},
        r"row 1 of the column 'a' has shape \(1,\), row 0 has \(2,\)",
    ),
    "gap in a list": ({"a": [[1, 2], [3, None]], "y": [0, 1]}, r"row 1 of the column 'a' is \[3, None\]"),
    "missing list": ({"a": [[1, 2], None], "y": [0, 1]}, "row 1 of the column 'a' is None"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_refused(case: str) -> None:
    held, words = TABLES[case]
    with pytest.raises(DataError, match=words):
        read(pa.table(held))


def test_columns_of_a_table() -> None:
    """Numbers are one table; arrays are inputs by name; texts and what is beside arrays are not used, which is said."""
    said = list[str]()
    held = {"age": [50, 60], "name": ["a", "b"], "ok": [True, False], "target": ["ill", "well"]}
    given = given_arrays(pa.table(held), None, None, notify=said.append)
    assert given.train is not None
    assert given.train.x.tolist() == [[50.0, 1.0], [60.0, 0.0]]
    assert given.class_names == ("ill", "well")
    assert said == ["the label is 'target', the inputs are 'age', 'ok'; not used: 'name'"]
    of_a_part = pa.table({**held, "__index_level_0__": [7, 9]})  # of a frame's rows, by Dataset.from_pandas
    given = given_arrays(of_a_part, None, None, notify=said.append)
    assert given.train is not None
    assert given.train.x.tolist() == [[50.0, 1.0], [60.0, 0.0]]
    assert said[1].endswith("not used: 'name', '__index_level_0__'")
    held = {"ids": [[1, 2], [3, 4]], "mask": [[True, False]] * 2, "number": [7, 8], "y": [0, 1]}
    tokens = read(pa.table(held)).train
    assert tokens is not None
    assert [(one.name, one.dtype, one.shape) for one in tokens.fields] == [
        ("ids", "int64", (2,)),
        ("mask", "bool", (2,)),
    ]
    named = read((pa.table(held), "number", ["ids"])).train
    assert named is not None
    assert (named.x.tolist(), named.x.dtype) == ([[1, 2], [3, 4]], np.int64)
    labelled = read(pa.table(held), data__label="number").train
    assert labelled is not None
    assert labelled.y is not None
    assert labelled.y.tolist() == [7, 8]
    with pytest.raises(SettingError, match=r"data.label = 'y' names a column of a table; train has none"):
        read((X, Y), data__label="y")
    two = read((pa.table(columns(X, Y)), "label", ("f3", "f0"))).train
    assert two is not None
    assert [one.name for one in two.fields] == ["f3", "f0"]


def test_tables_agree_by_name() -> None:
    """Columns in another order, with labels or without, are the same inputs in test and public sets."""
    said = list[str]()
    swapped = dict(reversed(columns(X, Y).items()))
    public = {**{name: swapped[name] for name in swapped if name != "label"}, "more": Y}
    given = given_arrays(pa.table(columns(X, Y)), pa.table(swapped), pa.table(public), notify=said.append)
    assert given.test is not None
    assert given.public is not None
    np.testing.assert_array_equal(given.test.x, X)
    np.testing.assert_array_equal(given.public.x, X)
    given_arrays(pa.table(columns(X, Y)), None, pa.table(swapped), notify=said.append)
    assert said[-1] == "the column 'label' of the public set is not used"
    with pytest.raises(DataError, match="public: there is no column 'f1'"):
        read(pa.table(columns(X, Y)), None, pa.table({"f0": X[:, 0]}))


def test_items_with_several_inputs_and_images() -> None:
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    pictures = read(Rows([(image, 1), (image.convert("L"), 0)])).train
    assert pictures is not None
    assert (pictures.x.dtype, pictures.x.shape) == (np.uint8, (2, 3, 2, 4))
    assert pictures.x[0, :, 0, 1].tolist() == [3, 4, 5]
    two = read(Rows([((X[0], torch.tensor([1, 2])), "a"), ((X[1], torch.tensor([3, 4])), "b")]))
    assert two.train is not None
    assert [one.name for one in two.train.fields] == ["0", "1"]
    assert two.class_names == ("a", "b")
    named = read(Rows([({"ids": [1, 2]}, 0), ({"ids": [3, 4]}, 1)])).train
    assert named is not None
    assert [one.name for one in named.fields] == ["ids"]


def test_frames() -> None:
    """Missing values of every kind of pandas, arrays and images as objects, names of columns twice."""
    frame = pandas().DataFrame
    for a, row in (([1.5, None], 1), (pandas().array([None, 1], dtype="Int64"), 0), ([pandas().NA, 1], 0)):
        with pytest.raises(DataError, match=f"train: the column 'a' has no finite value in row {row}"):
            read(frame({"a": a, "y": [0, 1]}))
    with pytest.raises(DataError, match="there are 2 columns 'a'"):
        read(frame([[1, 2, 0]], columns=["a", "a", "y"]))
    arrays = read(frame({"a": [np.eye(2), np.ones((2, 2))], "y": ["p", "q"]}))
    assert arrays.train is not None
    assert arrays.train.shape == (2, 2)
    pixels = np.zeros((4, 5), np.uint8)
    images = read(frame({"image": [Image.fromarray(pixels)] * 2, "y": [0, 1], "file": ["a.png", "b.png"]})).train
    assert images is not None
    assert (images.x.dtype, images.shape) == (np.uint8, (1, 4, 5))


def test_hugging_face_datasets(tmp_path: Path) -> None:
    """Images, classes with names, arrays, a function that makes rows when they are read; streams and splits."""
    datasets = hugging_face()
    pixels = RNG.integers(0, 255, (6, 4, 5, 3)).astype(np.uint8)
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    held = {"image": [Image.fromarray(one) for one in pixels], "label": [0, 1] * 3, "who": list("aabbcc")}
    whole = datasets.Dataset.from_dict(held, features=datasets.Features(kinds | {"who": datasets.Value("string")}))
    given = read(whole.select([4, 1]), **{key.replace(".", "__"): value for key, value in BY_COLUMN.items()})
    assert given.train is not None
    assert given.train.y is not None
    np.testing.assert_array_equal(given.train.x, pixels[[4, 1]].transpose(0, 3, 1, 2))
    assert (given.train.y.tolist(), given.train.columns["who"].tolist()) == ([0, 1], ["c", "a"])
    assert given.class_names == ("no", "yes")
    table = datasets.Dataset.from_dict({"a": [[[1.0, 2.0]], [[3.0, 4.0]]], "label": [0, 1]})
    for form in (table, table.with_format("torch"), table.with_format("numpy")):
        arrays = read(form).train
        assert arrays is not None
        assert arrays.x.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]
    made = read(table.with_transform(lambda rows: {"a": np.asarray(rows["a"]) + 1, "y": rows["label"]})).train
    assert made is not None
    assert made.x.tolist() == [[[2.0, 3.0]], [[4.0, 5.0]]]
    with pytest.raises(DataError, match="train: it has the splits train, test: give one of them"):
        read(datasets.DatasetDict(train=table, test=table))
    with pytest.raises(DataError, match="train: a dataset that streams is given"):
        read(table.to_iterable_dataset())
    by_split = read(dict(datasets.DatasetDict(north=table, south=table))).train
    assert by_split is not None
    assert by_split.columns["client"].tolist() == ["north", "north", "south", "south"]


def test_the_frame_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of "custom-data-and-model.md" runs as it is printed, and learns."""
    pandas()
    pages = blocks(find("custom-data-and-model.md"))
    (text,) = (block["text"] for block in pages if block["note"] and "test_frames.py" in block["note"])
    monkeypatch.chdir(tmp_path)
    exec(text, {})
    assert float(capsys.readouterr().out.split()[-1]) > 75
