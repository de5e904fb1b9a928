from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from image_files import encode

from cpfl.data.importer import import_folder
from cpfl.data.sources import load
from cpfl.errors import DataError

RNG = np.random.default_rng(13)
GREY = RNG.integers(0, 256, (8, 10, 12), dtype=np.uint8)


def put(file: Path, pixels: np.ndarray, format: str = "PNG") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode(pixels, format))


def labelled(source: Path) -> None:
    put(source / "train" / "dog" / "b.png", GREY[0])
    put(source / "train" / "dog" / "a.png", GREY[1])
    put(source / "train" / "cat" / "deep" / "c.PNG", GREY[2])
    put(source / "test" / "dog" / "d.png", GREY[3])
    (source / "train" / "dog" / "notes.txt").write_text("not an image")
    (source / "train" / "dog" / "._b.png").write_text("left by another system")


def test_labelled_folders(tmp_path: Path) -> None:
    labelled(tmp_path / "mine")
    folder = import_folder(tmp_path / "mine", "pets", tmp_path / "root")
    assert folder == tmp_path / "root" / "pets"
    names = ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["pets"]
    train, test = load("pets", "train", [tmp_path / "root"]), load("pets", "test", [tmp_path / "root"])
    assert train is not None
    assert test is not None
    np.testing.assert_array_equal(train.x[:, 0], GREY[[2, 1, 0]])
    assert train.y is not None
    assert train.y.tolist() == [0, 1, 1]
    assert test.y is not None
    assert test.y.tolist() == [1]
    metadata = pq.read_schema(folder / names[1]).metadata
    features = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert features["label"]["names"] == ["cat", "dog"]


@pytest.mark.parametrize("place", [".", "train"])
def test_public_set_without_labels(tmp_path: Path, place: str) -> None:
    for k in range(3):
        put(tmp_path / "mine" / place / f"{k}.webp", np.stack([GREY[k]] * 3, axis=-1), "WEBP")
    import_folder(tmp_path / "mine", "open", tmp_path / "root")
    samples = load("open", "public", [tmp_path / "root"])
    assert samples is not None
    assert samples.x.shape == (3, 3, 10, 12)
    assert load("open", "test", [tmp_path / "root"]) is None


def refuse(tmp_path: Path, message: str, name: str = "mine") -> None:
    with pytest.raises(DataError, match=message):
        import_folder(tmp_path / "source", name, tmp_path / "root")
    if (tmp_path / "root").is_dir():
        assert list((tmp_path / "root").iterdir()) == []


def test_no_folder(tmp_path: Path) -> None:
    refuse(tmp_path, "source is not a folder: train/<label>/<image>")


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "source" / "train" / "cat").mkdir(parents=True)
    refuse(tmp_path, r"source holds no images \(\.png, \.jpg")


def test_unreadable_image_is_named(tmp_path: Path) -> None:
    labelled(tmp_path / "source")
    (tmp_path / "source" / "train" / "dog" / "broken.jpg").write_bytes(b"no image")
    refuse(tmp_path, r"dog/broken\.jpg is not a readable image")


def test_truncated_image_is_named(tmp_path: Path) -> None:
    put(tmp_path / "source" / "half.png", GREY[0])
    file = tmp_path / "source" / "half.png"
    file.write_bytes(file.read_bytes()[:-60])
    refuse(tmp_path, r"half\.png is not a readable image")


def test_different_sizes(tmp_path: Path) -> None:
    labelled(tmp_path / "source")
    put(tmp_path / "source" / "test" / "dog" / "small.png", GREY[0, :5])
    refuse(tmp_path, r"small\.png is 12×5 pixels and the images before it are 12×10")


def test_some_images_without_a_label(tmp_path: Path) -> None:
    labelled(tmp_path / "source")
    put(tmp_path / "source" / "train" / "stray.png", GREY[0])
    refuse(tmp_path, r"directly \(stray\.png\) and in label folders \(cat\)")


def test_label_that_only_the_test_set_has(tmp_path: Path) -> None:
    labelled(tmp_path / "source")
    put(tmp_path / "source" / "test" / "bird" / "e.png", GREY[0])
    refuse(tmp_path, "label 'bird', which .*train has not: its labels are cat, dog")


def test_test_set_without_labels(tmp_path: Path) -> None:
    put(tmp_path / "source" / "train" / "cat" / "a.png", GREY[0])
    put(tmp_path / "source" / "test" / "a.png", GREY[0])
    refuse(tmp_path, "test has no label folders while")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10", "name of a known set"),
        ("a/b", "plain folder name"),
        ("", "plain folder name"),
        ("..", "plain folder"),
    ],
)
def test_bad_names(tmp_path: Path, name: str, message: str) -> None:
    labelled(tmp_path / "source")
    refuse(tmp_path, message, name)


def test_existing_target(tmp_path: Path) -> None:
    labelled(tmp_path / "source")
    import_folder(tmp_path / "source", "mine", tmp_path / "root")
    with pytest.raises(DataError, match="root/mine exists already"):
        import_folder(tmp_path / "source", "mine", tmp_path / "root")
