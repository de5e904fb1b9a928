from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from image_files import encode, write_shard
from scipy.io import savemat

from cpfl.data.catalogue import CATALOGUE
from cpfl.data.sources import available, describe, load, search_roots
from cpfl.errors import DataError

RNG = np.random.default_rng(17)
IMAGES = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


def parquet_set(folder: Path, *splits: str) -> Path:
    for split in splits:
        images = [encode(image) for image in IMAGES]
        write_shard(folder / f"{split}-00000-of-00001.parquet", images, label=[0, 1, 2])
    return folder


def stl_set(folder: Path, *, unlabelled: bool = True) -> Path:
    inner = folder / "stl10_binary"
    inner.mkdir(parents=True)
    for name, count in {"train": 2, "test": 1, "unlabeled": 3}.items():
        if name != "unlabeled" or unlabelled:
            (inner / f"{name}_X.bin").write_bytes(RNG.bytes(count * 3 * 96 * 96))
        if name != "unlabeled":
            (inner / f"{name}_y.bin").write_bytes(bytes([10] * count))
    return folder


def test_roots_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_roots(None) == [cache / "data"]
    monkeypatch.setenv("CPFL_DATA", str(tmp_path / "env"))
    assert search_roots(tmp_path / "given") == [tmp_path / "given", tmp_path / "env", cache / "data"]
    monkeypatch.delenv("CPFL_CACHE")
    assert search_roots(None)[-1] == Path(platformdirs.user_cache_dir("cpfl")) / "data"


def test_first_root_wins_and_empty_folders_do_not_count(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    (roots[0] / "cifar10").mkdir(parents=True)
    for root in roots[1:]:
        parquet_set(root / "cifar10", "train")
    assert describe("cifar10", roots).path == roots[1] / "cifar10"


def test_splits_of_a_named_set_a_folder_and_a_path(tmp_path: Path) -> None:
    parquet_set(tmp_path / "cifar10", "train", "test")
    parquet_set(tmp_path / "own", "train")
    for name in ("cifar10", "own", str(tmp_path / "own")):
        train = load(name, "train", [tmp_path])
        assert train is not None
        np.testing.assert_array_equal(train.x, IMAGES.transpose(0, 3, 1, 2))
        public = load(name, "public", [tmp_path])
        assert public is not None
        assert public.y is None
        assert public.columns == {}
        assert len(public) == 3
    assert load("cifar10", "test", [tmp_path]) is not None
    assert load("own", "test", [tmp_path]) is None
    assert available([tmp_path, tmp_path / "none"]) == [*CATALOGUE, "own"]


def test_embedded_sets_need_no_root() -> None:
    train, test, public = (load("digits", split, []) for split in ("train", "test", "public"))
    assert train is not None
    assert test is not None
    assert public is not None
    assert public.y is None
    assert len(public) == len(train)
    letters = load("letters", "public", [])
    assert letters is not None
    assert letters.shape == train.shape
    assert load("letters", "test", []) is None


@pytest.mark.parametrize("name", ["stl10", "photographs"])
def test_public_stl10_is_the_unlabelled_part_unless_more_is_named(tmp_path: Path, name: str) -> None:
    stl_set(tmp_path / name)
    public, train = load(name, "public", [tmp_path]), load(name, "train", [tmp_path])
    both = load(name, "public", [tmp_path], ["train", "unlabeled"])
    assert public is not None
    assert train is not None
    assert both is not None
    assert (len(public), len(both)) == (3, 5)
    assert public.y is None
    assert both.y is None
    np.testing.assert_array_equal(both.x, np.concatenate([train.x, public.x]))


def test_public_stl10_without_its_unlabelled_images(tmp_path: Path) -> None:
    stl_set(tmp_path / "stl10", unlabelled=False)
    with pytest.raises(DataError, match=r"lacks unlabeled_X\.bin"):
        load("stl10", "public", [tmp_path])
    parquet_set(tmp_path / "own" / "stl10", "train")
    with pytest.raises(DataError, match="has no 'unlabeled' split, which its public use names: it has train"):
        load("stl10", "public", [tmp_path / "own"])


def test_public_svhn_is_the_extra_part_unless_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    for split, count in {"train": 2, "extra": 4}.items():
        x = RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        savemat(tmp_path / "svhn" / f"{split}_32x32.mat", {"X": x, "y": np.full((count, 1), 10, dtype=np.uint8)})
    for splits, count in (((), 4), (("train", "extra"), 6)):
        public = load("svhn", "public", [tmp_path], splits)
        assert public is not None
        assert public.x.shape == (count, 3, 32, 32)
    assert load("svhn", "test", [tmp_path]) is None


def test_leaf_folder(tmp_path: Path) -> None:
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    users = {"users": ["w"], "num_samples": [1], "user_data": {"w": {"x": [[0.5] * 784], "y": [61]}}}
    (tmp_path / "femnist" / "train" / "all.json").write_text(json.dumps(users))
    train = load("femnist", "train", [tmp_path])
    assert train is not None
    assert train.columns["writer_id"].tolist() == ["w"]
    assert describe("femnist", [tmp_path]).format == "LEAF"


def test_missing_downloadable_set(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    places = f"{roots[0]}/stl10, {roots[1]}/stl10"
    with pytest.raises(DataError, match=rf"'stl10' was not found at {places}: .*stl10_binary.*`cpfl data get stl10`"):
        load("stl10", "public", roots)


def test_missing_set_without_a_download(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'mnist-writers' was not found at .*: expected there: train-\*\.parquet"
    ) as caught:
        load("mnist-writers", "train", [tmp_path])
    assert "cpfl data get" not in str(caught.value)


def test_a_bare_name_of_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train-0.csv").write_text("a,label\n" + "1,0\n2,1\n" * 5)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"'mine' was not found at .*for the folder of this name here, write './mine'"):
        load("mine", "train", [tmp_path / "data"])
    found = load("./mine", "train", [tmp_path / "data"])
    assert found is not None
    assert len(found) == 10


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'cifra10' is unknown and was not found at .*did you mean cifar10\? Known are digits"
    ):
        load("cifra10", "train", [tmp_path])
    parquet_set(tmp_path / "flowers", "train")
    with pytest.raises(DataError, match="did you mean flowers"):
        load("flower", "train", [tmp_path])


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere' is a path that is not a folder"):
        load(str(tmp_path / "nowhere"), "train", [])
    (tmp_path / "table.csv.gz").touch()
    with pytest.raises(DataError, match=r"the file '.*table.csv.gz' is no data set: expected there"):
        load(str(tmp_path / "table.csv.gz"), "train", [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty' holds no data set: expected there: train-\*\.parquet"):
        load(str(tmp_path / "empty"), "train", [])


def test_set_without_training_images(tmp_path: Path) -> None:
    parquet_set(tmp_path / "own", "test")
    for split in ("train", "public"):
        with pytest.raises(DataError, match=f"'own' at .* has no '{split}' split: it has test"):
            load("own", split, [tmp_path])


def test_device_trace_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'fedscale' is a device trace.*devices\.trace"):
        load("fedscale", "train", [tmp_path])
    (tmp_path / "fedscale").mkdir()
    assert describe("fedscale", [tmp_path]).path == tmp_path / "fedscale"


def test_descriptions(tmp_path: Path) -> None:
    parquet_set(tmp_path / "cifar10", "train")
    parquet_set(tmp_path / "own", "train")
    found = describe("cifar10", [tmp_path])
    assert (found.format, found.path, found.shape, found.classes) == ("parquet", tmp_path / "cifar10", (3, 32, 32), 10)
    assert describe("digits", []).format == "built in"
    missing = describe("svhn", [tmp_path])
    assert (missing.format, missing.path, missing.downloadable) == ("missing", None, True)
    assert missing.size == 182_040_794 + 64_275_384 + 1_329_278_602
    assert describe("own", [tmp_path]).what == "a set of your own"
    with pytest.raises(DataError, match="'nothing' is unknown"):
        describe("nothing", [tmp_path])


def test_an_incomplete_set_does_not_hide_the_others(tmp_path: Path) -> None:
    write_shard(tmp_path / "half" / "train-00000-of-00002.parquet", [encode(IMAGES[0])])
    assert "half" in available([tmp_path])
    with pytest.raises(DataError, match="1 of the 2 files"):
        load("half", "train", [tmp_path])


def test_real_sets_are_what_the_catalogue_says(real: Path) -> None:
    for name, split in (("mnist-writers", "test"), ("emnist-letters", "public")):
        samples = load(name, split, [real])  # type: ignore[arg-type]
        assert samples is not None
        assert samples.shape == CATALOGUE[name].shape
    assert describe("tinyimagenet32", [real]).format == "parquet"
    assert describe("fedscale", [real]).format == "trace"
