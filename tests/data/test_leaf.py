from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpfl.data import archives
from cpfl.errors import DataError

RNG = np.random.default_rng(7)


def write(file: Path, users: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in users.values()]
    file.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))


def user(labels: list[int]) -> dict[str, Any]:
    return {"x": (RNG.integers(0, 256, (len(labels), 784)) / 255).tolist(), "y": labels}


def test_users_become_a_column(tmp_path: Path) -> None:
    first, second, third = user([3, 61]), user([0]), user([])
    write(tmp_path / "train" / "all_data_0.json", {"f0000_14": first, "f0001_41": second})
    write(tmp_path / "train" / "all_data_1.json", {"f0002": third, "f3": user([7, 8])})
    samples = archives.read(tmp_path, "LEAF", "train")
    assert samples is not None
    assert samples.x.shape == (5, 1, 28, 28)
    assert samples.x.dtype == np.uint8
    np.testing.assert_allclose(samples.x[1].ravel() / 255, first["x"][1], rtol=0, atol=1e-6)
    assert samples.y is not None
    assert samples.y.tolist() == [3, 61, 0, 7, 8]
    assert samples.columns["writer_id"].tolist() == ["f0000_14", "f0000_14", "f0001_41", "f3", "f3"]
    assert archives.read(tmp_path, "LEAF", "test") is None
    assert archives.leaf_splits(tmp_path) == ["train"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": [[0.5] * 784], "y": [1, 2]}, "1 images of 784 values and 2 labels"),
        ({"x": [[0.5] * 783], "y": [1]}, "images of 783 values .* 784 values"),
        ({"x": [[0.5] * 784, [0.5]], "y": [1, 2]}, "no even lists x and y"),
        ({"x": [[0.5] * 784], "y": ["a"]}, "integers are expected"),
        ({"x": [[255.0] * 784], "y": [1]}, "pixels from 255.0 to 255.0: 0 to 1 is allowed"),
        ({"y": []}, "no even lists x and y"),
    ],
)
def test_bad_users(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    write(tmp_path / "train" / "a.json", {"writer": data})
    with pytest.raises(DataError, match=rf"user 'writer' in .*a\.json .*{message}"):
        archives.read(tmp_path, "LEAF", "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"users": ["a"], "user_da', "truncated or not JSON"),
        ("[1, 2]", "not LEAF's: .*users, num_samples and user_data"),
        ('{"users": ["a"], "user_data": {}}', "user 'a' .* no even lists"),
        ('{"users": [], "user_data": {}}', "holds no samples"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        archives.read(tmp_path, "LEAF", "train")
