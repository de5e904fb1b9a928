from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from cpfl.data import archives
from cpfl.errors import DataError

RNG = np.random.default_rng(5)
CIFAR = RNG.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
CIFAR_LABELS = RNG.integers(0, 10, 12, dtype=np.uint8)
STL = RNG.integers(0, 256, (4, 3, 96, 96), dtype=np.uint8)
SVHN = RNG.integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)


def cifar_members() -> dict[str, bytes]:
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    records = [bytes([label]) + image.tobytes() for label, image in zip(CIFAR_LABELS, CIFAR, strict=True)]
    return {name: records[2 * k] + records[2 * k + 1] for k, name in enumerate(names)}


def stl_members() -> dict[str, bytes]:
    stored = STL.swapaxes(2, 3)  # column by column
    return {
        "train_X.bin": stored[:2].tobytes(),
        "train_y.bin": bytes([1, 10]),
        "test_X.bin": stored[2:3].tobytes(),
        "test_y.bin": bytes([4]),
        "unlabeled_X.bin": stored[3:].tobytes(),
    }


def unpacked(folder: Path, inner: str, members: dict[str, bytes]) -> None:
    (folder / inner).mkdir(parents=True, exist_ok=True)
    for name, content in members.items():
        (folder / inner / name).write_bytes(content)


def packed(file: Path, inner: str, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in {"../escape.bin": b"evil", f"{inner}/readme.html": b"hi"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo(f"{inner}/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
        for name, content in members.items():
            info = tarfile.TarInfo(f"{inner}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_svhn(file: Path, images: np.ndarray, labels: list[int]) -> None:
    savemat(
        file, {"X": images.transpose(2, 3, 1, 0), "y": np.asarray(labels, dtype=np.uint8)[:, None]}, do_compression=True
    )


@pytest.mark.parametrize("form", ["folder", "flat", "archive"])
def test_cifar10(tmp_path: Path, form: str) -> None:
    if form == "archive":
        packed(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", cifar_members())
    else:
        unpacked(tmp_path, "cifar-10-batches-bin" if form == "folder" else ".", cifar_members())
    before = sorted(tmp_path.rglob("*"))
    assert archives.recognise(tmp_path) == "cifar10"
    train, test = archives.read(tmp_path, "cifar10", "train"), archives.read(tmp_path, "cifar10", "test")
    assert train is not None
    assert test is not None
    np.testing.assert_array_equal(train.x, CIFAR[:10])
    np.testing.assert_array_equal(test.x, CIFAR[10:])
    assert train.y is not None
    assert train.y.tolist() == CIFAR_LABELS[:10].tolist()
    assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path.parent / "escape.bin").exists()


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_stl10(tmp_path: Path, form: str) -> None:
    if form == "archive":
        packed(tmp_path / "stl10_binary.tar.gz", "stl10_binary", stl_members())
    else:
        unpacked(tmp_path, "stl10_binary", stl_members())
    assert archives.recognise(tmp_path) == "stl10"
    train = archives.read(tmp_path, "stl10", "train")
    unlabelled = archives.read(tmp_path, "stl10", "unlabeled")
    assert train is not None
    assert unlabelled is not None
    np.testing.assert_array_equal(train.x, STL[:2])
    assert train.y is not None
    assert train.y.tolist() == [0, 9]
    np.testing.assert_array_equal(unlabelled.x, STL[3:])
    assert unlabelled.y is None


def test_svhn(tmp_path: Path) -> None:
    write_svhn(tmp_path / "train_32x32.mat", SVHN[:3], [10, 1, 9])
    write_svhn(tmp_path / "extra_32x32.mat", SVHN[3:], [2, 10])
    assert archives.recognise(tmp_path) == "svhn"
    train = archives.read(tmp_path, "svhn", "train")
    assert train is not None
    np.testing.assert_array_equal(train.x, SVHN[:3])
    assert train.y is not None
    assert train.y.tolist() == [0, 1, 9]
    assert archives.read(tmp_path, "svhn", "test") is None
    (tmp_path / "extra_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"extra_32x32\.mat is missing"):
        archives.read(tmp_path, "svhn", "extra")


def test_nothing_to_recognise(tmp_path: Path) -> None:
    assert archives.recognise(tmp_path) is None


@pytest.mark.parametrize("cut", [1, 3073])
def test_truncated_batch(tmp_path: Path, cut: int) -> None:
    members = cifar_members()
    members["data_batch_3.bin"] = members["data_batch_3.bin"][:-cut]
    unpacked(tmp_path, "cifar-10-batches-bin", members)
    with pytest.raises(DataError, match=rf"data_batch_3\.bin .*: expected 6,146 bytes, found {6146 - cut:,}"):
        archives.read(tmp_path, "cifar10", "train")


def test_empty_batch(tmp_path: Path) -> None:
    unpacked(tmp_path, "cifar-10-batches-bin", dict.fromkeys(cifar_members(), b""))
    with pytest.raises(DataError, match=r"data_batch_1\.bin .*: expected 3,073 bytes, found 0"):
        archives.read(tmp_path, "cifar10", "train")


def test_missing_batch(tmp_path: Path) -> None:
    members = cifar_members()
    del members["data_batch_4.bin"], members["test_batch.bin"]
    unpacked(tmp_path, "cifar-10-batches-bin", members)
    with pytest.raises(DataError, match=r"lacks data_batch_4\.bin"):
        archives.read(tmp_path, "cifar10", "train")
    assert archives.read(tmp_path, "cifar10", "test") is None


def test_wrong_labels(tmp_path: Path) -> None:
    members = {name: b"\x0b" + content[1:] for name, content in cifar_members().items()}
    unpacked(tmp_path, "cifar-10-batches-bin", members)
    with pytest.raises(DataError, match=r"labels from .* to 11: 0 to 9 are allowed"):
        archives.read(tmp_path, "cifar10", "train")


@pytest.mark.parametrize("split", ["train", "unlabeled"])
def test_truncated_stl10(tmp_path: Path, split: str) -> None:
    members = stl_members()
    members[f"{split}_X.bin"] = members[f"{split}_X.bin"][:-5]
    unpacked(tmp_path, "stl10_binary", members)
    count = 27648 * (2 if split == "train" else 1)
    with pytest.raises(DataError, match=rf"{split}_X\.bin .*expected {count:,} bytes, found {count - 5:,}"):
        archives.read(tmp_path, "stl10", split)


def test_truncated_archive(tmp_path: Path) -> None:
    file = tmp_path / "cifar-10-binary.tar.gz"
    packed(file, "cifar-10-batches-bin", cifar_members())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=rf"truncated .*found {len(whole) // 2:,} bytes, the published file has 170,052,171"
    ):
        archives.read(tmp_path, "cifar10", "train")
    file.write_bytes(gzip.compress(b"no tar in here"))
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is truncated or damaged"):
        archives.read(tmp_path, "cifar10", "train")


def test_damaged_svhn(tmp_path: Path) -> None:
    file = tmp_path / "train_32x32.mat"
    write_svhn(file, SVHN, [1, 2, 3, 4, 5])
    whole = file.read_bytes()
    for kept in (0, 50, 200, len(whole) // 2, len(whole) - 30):
        file.write_bytes(whole[:kept])
        with pytest.raises(DataError, match=rf"train_32x32\.mat is truncated.*found {kept:,} bytes, .*182,040,794"):
            archives.read(tmp_path, "svhn", "train")
    savemat(file, {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    with pytest.raises(DataError, match=r"X of float64 \(32, 32, 3, 2\) .*uint8 \(32, 32, 3, N\)"):
        archives.read(tmp_path, "svhn", "train")
