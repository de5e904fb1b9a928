"""Folders of `save_to_disk`: what the real package writes, and files that nobody should trust."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import cpfl
from cpfl.data import saved, sources
from cpfl.data.samples import Samples
from cpfl.data.tables import Roles
from cpfl.errors import DataError

RNG = np.random.default_rng(4)
HELD = {"dose": RNG.normal(size=60), "age": RNG.integers(20, 80, 60), "ward": np.arange(60) % 6}
LABEL = (HELD["age"] > 50).astype(np.int64)


def save(folder: Path, *tables: pa.Table, state: object = None, info: object = None) -> Path:
    """A folder in this layout, written without the package: one file for each table."""
    folder.mkdir(parents=True)
    names = [f"data-{part:05d}-of-{len(tables):05d}.arrow" for part in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    written = {"_data_files": [{"filename": name} for name in names]} if state is None else state
    (folder / "state.json").write_text(json.dumps(written))
    if info is not None:
        (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def loaded(path: Path, split: Any = "train", **roles: Any) -> Samples:
    found = sources.load(str(path), split, [], roles=Roles(**roles))
    assert found is not None
    return found


def encoded(*images: Any) -> pa.Array:
    cells = []
    for pixels in images:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    return pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def test_what_the_package_writes(tmp_path: Path, cache: Path) -> None:
    """Images, classes with names, arrays, text and several files; decoded once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets", reason="datasets is not installed: the extra dev has it")
    pixels = RNG.integers(0, 255, (6, 4, 5, 3)).astype(np.uint8)
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "who": datasets.Value("string"),
        }
    )
    held = {"image": [Image.fromarray(one) for one in pixels], "label": [0, 1] * 3, "who": list("aabbcc")}
    whole = datasets.Dataset.from_dict(held, features=kinds)
    whole.save_to_disk(tmp_path / "one", num_shards=2)
    for _ in range(2):
        found = loaded(tmp_path / "one", ids=("who",))
        np.testing.assert_array_equal(found.x, pixels.transpose(0, 3, 1, 2))
        assert found.y is not None
        assert (found.y.tolist(), found.columns["who"].tolist()) == ([0, 1] * 3, list("aabbcc"))
        assert len(list((cache / "decoded").glob("*.npy"))) == 1
    assert sources.class_names(str(tmp_path / "one"), [], Roles()) == ["no", "yes"]
    assert len(sources.load(str(tmp_path / "one"), "train", [], limit=4) or ()) == 4
    arrays = datasets.Features({"a": datasets.Array2D((2, 3), "float32"), "y": datasets.Value("string")})
    rows = {"a": np.arange(24.0).reshape(4, 2, 3).tolist(), "y": list("pqpq")}
    table = datasets.Dataset.from_dict(rows, features=arrays)
    datasets.DatasetDict(train=table.select([3, 0]), test=table).save_to_disk(tmp_path / "two")
    assert sorted(saved.splits(tmp_path / "two")) == ["test", "train"]
    found = loaded(tmp_path / "two")
    assert found.x.tolist() == [np.arange(18.0, 24).reshape(2, 3).tolist(), np.arange(6.0).reshape(2, 3).tolist()]
    assert found.y is not None
    assert found.y.tolist() == [1, 0]
    assert len(loaded(tmp_path / "two", "test")) == 4
    public = loaded(tmp_path / "two", "public")
    assert public.y is None
    assert public.x.shape == (2, 2, 3)


def test_an_experiment_of_folders(tmp_path: Path) -> None:
    """From the file alone: clients by a column, a table as inputs, names of classes from the folder."""
    table = pa.table({**HELD, "label": LABEL})
    info = {"features": {"label": {"names": ["well", "ill"], "_type": "ClassLabel"}}}
    save(tmp_path / "wards" / "train", table[:25], table[25:50], info=info)
    save(tmp_path / "wards" / "test", table[50:], info=info)
    (tmp_path / "wards" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save(tmp_path / "others", table.drop_columns(["label", "ward"]))
    (tmp_path / "wards.toml").write_text(
        'clients = 6\ncohorts = 2\nmax_rounds = 1\n[data]\ntrain = "wards"\npublic = "others"\nsplit = "column"\n'
        'column = "ward"\n[model]\nname = "mlp"\n[distillation]\nepochs = 1\n'
    )
    run = cpfl.run(tmp_path / "wards.toml", data=tmp_path, out=tmp_path / "run", engine="reference")
    about = json.loads((run.path / "run.json").read_text())
    assert about["samples"] == {"train": 50, "test": 10, "public": 60}
    assert (about["shape"], about["class_names"]) == ([2], ["well", "ill"])


def test_labels_that_are_withheld_or_named(tmp_path: Path) -> None:
    hidden = loaded(save(tmp_path / "a", pa.table({"x": [[1.0], [2.0]], "label": [-1, -1]})))
    assert hidden.y is None
    named = loaded(save(tmp_path / "b", pa.table({"x": [[1.0], [2.0]], "kind": ["q", "p"]})), label="kind")
    assert named.y is not None
    assert named.y.tolist() == [1, 0]


def test_samples_can_be_written(tmp_path: Path) -> None:
    """Mapped files are copied: torch warns of memory that is read only."""
    tokens = loaded(save(tmp_path / "a", pa.table({"ids": [[1, 2], [3, 4]], "y": [0, 1]})))
    assert torch.as_tensor(tokens.x).tolist() == [[1, 2], [3, 4]]


GREY = np.zeros((4, 5), np.uint8)
GOOD = pa.table({"image": encoded(GREY, GREY), "label": [0, 1]})
NO_IMAGE = pa.array(
    [{"bytes": None, "path": "/etc/passwd"}] * 2, pa.struct({"bytes": pa.binary(), "path": pa.string()})
)
NO_PNG = pa.array([{"bytes": b"no", "path": None}] * 2, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
STATES: dict[str, tuple[object, str]] = {
    "another folder": ({"_data_files": [{"filename": "../a.arrow"}]}, "names '../a.arrow': files of its own folder"),
    "another kind": ({"_data_files": [{"filename": "a.pkl"}]}, "names 'a.pkl'"),
    "no files": ({"_data_files": []}, "names no files"),
    "a missing file": ({"_data_files": [{"filename": "a.arrow"}]}, "a.arrow is missing, damaged or no Arrow stream"),
    "a list": ([], "does not list the files"),
    "numbers": ({"_data_files": [1]}, "does not list the files"),
}
TABLES: dict[str, tuple[pa.Table, str]] = {
    "a path instead of an image": (GOOD.set_column(0, "image", NO_IMAGE), "row 0 of the column 'image' has no image"),
    "no image": (GOOD.set_column(0, "image", NO_PNG), "row 0 of the column 'image' is no readable image"),
    "several sizes": (GOOD.set_column(0, "image", encoded(GREY, GREY[1:])), "row 1 of the column 'image' has shape"),
    "no label": (GOOD.drop_columns("label"), "none is called label, labels, target, y, class: name it in data.label"),
    "a gap": (pa.table({"a": [1.0, None], "y": [0, 1]}), "'a' has no finite value in row 1"),
    "labels and a gap": (pa.table({"a": [1.0, 2.0], "y": ["p", None]}), "'y' has no finite value in row 1"),
}


@pytest.mark.parametrize("case", STATES)
def test_states_that_are_refused(case: str, tmp_path: Path) -> None:
    state, words = STATES[case]
    with pytest.raises(DataError, match=words):
        loaded(save(tmp_path / "set", GOOD, state=state))


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_refused(case: str, tmp_path: Path) -> None:
    table, words = TABLES[case]
    with pytest.raises(DataError, match=words):
        loaded(save(tmp_path / "set", table))


def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut, of other columns, or larger than is allowed."""
    folder = save(tmp_path / "a", GOOD)
    (file,) = folder.glob("*.arrow")
    for cut in (8, 200):
        file.write_bytes(file.read_bytes()[:-cut])
        with pytest.raises(DataError, match="damaged or no Arrow stream"):
            loaded(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="it is no plain file"):
        loaded(folder)
    with pytest.raises(DataError, match=r"the columns of the files in .* differ"):
        loaded(save(tmp_path / "b", GOOD, GOOD.rename_columns(["picture", "label"])))
    monkeypatch.setenv("CPFL_MAX_GB", "1e-8")
    with pytest.raises(DataError, match="unpacks to"):
        loaded(save(tmp_path / "c", GOOD))
