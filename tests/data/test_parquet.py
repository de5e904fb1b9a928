from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import encode, write_shard
from PIL import Image

from cpfl.data import parquet
from cpfl.errors import DataError

RNG = np.random.default_rng(3)
COLOUR = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("place", ["", "data", "plain_text"])
@pytest.mark.parametrize(("column", "format"), [("image", "WEBP"), ("img", "PNG")])
def test_shards_are_joined_in_order(tmp_path: Path, place: str, column: str, format: str) -> None:
    for k in range(2):
        images = [encode(image, format) for image in COLOUR[3 * k : 3 * k + 3]]
        file = tmp_path / place / f"train-0000{k}-of-00002.parquet"
        write_shard(file, images, column, label=pa.array([k, 5, 9], type=pa.int8()))
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    assert samples.x.dtype == np.uint8
    np.testing.assert_array_equal(samples.x, COLOUR.transpose(0, 3, 1, 2))
    assert samples.y is not None
    assert samples.y.dtype == np.int64
    assert samples.y.tolist() == [0, 5, 9, 1, 5, 9]
    assert samples.columns == {}
    assert parquet.splits(tmp_path) == ["train"]
    assert parquet.read(tmp_path, "test") is None


def test_grey_images_and_id_columns(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "train-00000-of-00001.parquet",
        [encode(image) for image in GREY],
        writer_id=["f0", "f0", "f1", "f22", None, "f0"],
        hsf_id=[0, 1, 2, 3, 4, 5],
        tags=[[1], [2], [3], [4], [5], [6]],
        character=[61, 0, 5, 5, 2, 1],
    )
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    np.testing.assert_array_equal(samples.x[:, 0], GREY)
    assert samples.y is not None
    assert samples.y[0] == 61
    assert set(samples.columns) == {"writer_id", "hsf_id"}
    assert samples.columns["writer_id"].dtype.kind == "U"
    assert samples.columns["writer_id"].tolist() == ["f0", "f0", "f1", "f22", "", "f0"]


def test_names_of_classes_are_numbered_over_all_splits(tmp_path: Path) -> None:
    images = [encode(image) for image in GREY[:3]]
    write_shard(tmp_path / "train-00000-of-00001.parquet", images, character=["b", "a", "c"])
    write_shard(tmp_path / "test-00000-of-00001.parquet", images[:2], character=["c", "b"])
    train, test = parquet.read(tmp_path, "train"), parquet.read(tmp_path, "test")
    assert train is not None
    assert test is not None
    assert train.y is not None
    assert test.y is not None
    assert train.y.tolist() == [1, 0, 2]
    assert test.y.tolist() == [2, 1]


def test_plain_binary_and_unlabelled(tmp_path: Path) -> None:
    table = pa.table({"image": pa.array([encode(image) for image in GREY], type=pa.binary())})
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    assert samples.y is None
    np.testing.assert_array_equal(samples.x[:, 0], GREY)


def test_withheld_labels_are_none(tmp_path: Path) -> None:
    write_shard(tmp_path / "test-00000-of-00001.parquet", [encode(GREY[0])] * 2, label=[-1, -1])
    samples = parquet.read(tmp_path, "test")
    assert samples is not None
    assert samples.y is None


def test_a_grey_image_among_colours_becomes_colour(tmp_path: Path) -> None:
    grey = COLOUR[0, :, :, 0]
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(grey), encode(COLOUR[1], "WEBP"), encode(grey)])
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    assert samples.shape == (3, 32, 32)
    np.testing.assert_array_equal(samples.x[0], np.stack([grey] * 3))
    np.testing.assert_array_equal(samples.x[2], np.stack([grey] * 3))


def test_cache_is_used_and_damage_is_repaired(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "set" / "train-00000-of-00001.parquet"
    write_shard(file, [encode(image) for image in GREY])
    first = parquet.read(file.parent, "train")
    [kept] = (cache / "decoded").glob("*.npy")
    assert first is not None

    def fail(*_: object) -> None:
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_decode", fail)
        again = parquet.read(file.parent, "train")
    assert again is not None
    np.testing.assert_array_equal(again.x, first.x)
    again.x[0] = 0  # type: ignore[assignment]  # a caller's own copy: the cache must not change

    for damage in (b"", kept.read_bytes()[:-7], b"\x00" * kept.stat().st_size):
        kept.write_bytes(damage)
        repaired = parquet.read(file.parent, "train")
        assert repaired is not None
        np.testing.assert_array_equal(repaired.x, first.x)
        stored = kept.with_suffix(".sha256").read_text()
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == stored
    assert sorted(path.suffix for path in (cache / "decoded").iterdir()) == [".npy", ".sha256"]


def test_changed_content_of_equal_size_is_decoded_anew(tmp_path: Path) -> None:
    raw = [GREY[0].tobytes(), GREY[1].tobytes()]
    file = tmp_path / "train-00000-of-00001.parquet"
    file.write_bytes(raw[0])
    first = parquet.cached([file], lambda: np.frombuffer(raw[0], dtype=np.uint8))
    file.write_bytes(raw[1])
    second = parquet.cached([file], lambda: np.frombuffer(raw[1], dtype=np.uint8))
    assert not np.array_equal(first, second)


def test_a_cache_that_cannot_be_written_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("CPFL_CACHE", str(blocked))
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(image) for image in GREY])
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    np.testing.assert_array_equal(samples.x[:, 0], GREY)


def test_a_full_disk_leaves_no_rest(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0])])
    assert parquet.read(tmp_path, "train") is not None
    assert list((cache / "decoded").iterdir()) == []


def test_different_sizes(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0]), encode(GREY[0, :20])])
    with pytest.raises(DataError, match=r"row 1 of .* is 28×20 pixels and the first image is 28×28: .*one size"):
        parquet.read(tmp_path, "train")


def test_unreadable_image(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0]), b"no image at all"])
    with pytest.raises(DataError, match=r"row 1 of .*train-00000.* is not a readable image"):
        parquet.read(tmp_path, "train")


def test_truncated_image(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0]), encode(GREY[1])[:-200]])
    with pytest.raises(DataError, match=r"row 1 of .* is not a readable image"):
        parquet.read(tmp_path, "train")


def test_sixteen_bit_image(tmp_path: Path) -> None:
    deep = tmp_path / "deep.png"
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(deep)
    write_shard(tmp_path / "train-00000-of-00001.parquet", [deep.read_bytes()])
    with pytest.raises(DataError, match=r"its pixels are I;16, and 1, L, .* are allowed"):
        parquet.read(tmp_path, "train")


def test_missing_image_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0]), None])
    with pytest.raises(DataError, match=r"row 1 of .* has no image bytes"):
        parquet.read(tmp_path, "train")


def test_no_image_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"picture": [1], "label": [2]}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match="no image column: it has picture, label; allowed are image and img"):
        parquet.read(tmp_path, "train")


@pytest.mark.parametrize("values", [["text"], [[1, 2]]])
def test_image_column_of_another_type(tmp_path: Path, values: list[object]) -> None:
    pq.write_table(pa.table({"image": values}), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match="a struct with bytes, or binary, is allowed"):
        parquet.read(tmp_path, "train")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, None], "1 rows without a label"),
        ([0.5, 1.0], "float64: integers or text are allowed"),
        ([3, -2], "label -2: 0 and up are allowed"),
    ],
)
def test_bad_labels(tmp_path: Path, labels: list[object], message: str) -> None:
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0])] * 2, label=labels)
    with pytest.raises(DataError, match=message):
        parquet.read(tmp_path, "train")


def test_missing_shard(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00001-of-00003.parquet", [encode(GREY[0])])
    with pytest.raises(DataError, match=r"1 of the 3 files of split 'train': train-00000-of-00003\.parquet is missing"):
        parquet.read(tmp_path, "train")


def test_two_snapshots_in_one_folder(tmp_path: Path) -> None:
    for name in ("train-00000-of-00001.parquet", "train-00000-of-00001-0123abcd.parquet"):
        write_shard(tmp_path / name, [encode(GREY[0])])
    with pytest.raises(DataError, match=r"2 files of split 'train' .* only one snapshot"):
        parquet.read(tmp_path, "train")


def test_empty_and_damaged_files(tmp_path: Path) -> None:
    file = tmp_path / "train-00000-of-00001.parquet"
    write_shard(file, [])
    with pytest.raises(DataError, match="holds no images"):
        parquet.read(tmp_path, "train")
    write_shard(file, [encode(image) for image in GREY])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"train-00000-of-00001\.parquet is damaged"):
        parquet.read(tmp_path, "train")


def test_real_cifar10(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image is decoded once; whoever reads the set again need not wait for that."""
    opened, opening = [0], parquet.open_image

    def counted(*words: Any, **named: Any) -> Any:
        opened[0] += 1
        return opening(*words, **named)

    monkeypatch.setattr(parquet, "open_image", counted)
    test = parquet.read(real / "cifar10", "test")
    cold, opened[0] = opened[0], 0
    again = parquet.read(real / "cifar10", "test")
    assert test is not None
    assert again is not None
    assert test.x.shape == (10_000, 3, 32, 32)
    assert test.y is not None
    assert np.bincount(test.y).tolist() == [1000] * 10
    assert test.fingerprint() == again.fingerprint()
    assert (cold, opened[0]) == (10_000, 0)


def test_real_writers(real: Path) -> None:
    test = parquet.read(real / "mnist-writers", "test")
    assert test is not None
    assert test.shape == (1, 28, 28)
    assert len(np.unique(test.columns["writer_id"])) == 297
    assert test.y is not None
    assert set(test.y.tolist()) == set(range(10))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="a superuser may write anywhere")
def test_a_read_only_cache_breaks_nothing(tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(GREY[0])])
    assert parquet.read(tmp_path, "train") is not None


def test_a_limit_decodes_no_more(tmp_path: Path, cache: Path) -> None:
    """Over two files; the rows beyond the limit are not even images. The cache holds what was decoded."""
    folder, labels = tmp_path / "set", pa.array([0, 1, 2], type=pa.int8())
    for k, images in enumerate(([encode(image) for image in GREY[:3]], [encode(GREY[3]), b"no image", b"nor this"])):
        write_shard(folder / f"train-0000{k}-of-00002.parquet", images, label=labels, writer_id=["a", "b", "c"])
    for _ in range(2):  # decoded, then from the cache
        samples = parquet.read(folder, "train", 4)
        assert samples is not None
        np.testing.assert_array_equal(samples.x[:, 0], GREY[:4])
        assert samples.y is not None
        assert samples.y.tolist() == [0, 1, 2, 0]
        assert samples.columns["writer_id"].tolist() == ["a", "b", "c", "a"]
        assert len(list((cache / "decoded").glob("*.npy"))) == 1
    with pytest.raises(DataError, match=r"row 1 of .* is not a readable image"):
        parquet.read(folder, "train")


def test_a_limited_set_does_not_depend_on_the_cache(tmp_path: Path) -> None:
    """The first rows are grey, and stay so when the whole set, which has colours, was read before them."""
    rows = [*GREY[:2], *COLOUR[:2, :28, :28]]
    write_shard(tmp_path / "train-00000-of-00001.parquet", [encode(image) for image in rows])
    shapes = []
    for limit in (2, 0, 2):
        samples = parquet.read(tmp_path, "train", limit)
        assert samples is not None
        shapes.append(samples.x.shape)
    assert shapes == [(2, 1, 28, 28), (4, 3, 28, 28), (2, 1, 28, 28)]
