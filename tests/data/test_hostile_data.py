"""Data that someone made to break a reader: each file is refused in one sentence, before it fills the memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import encode, write_shard

from cpfl.data import archives, catalogue, federated, parquet, sources
from cpfl.data.importer import import_folder
from cpfl.data.samples import Samples
from cpfl.data.split import dirichlet
from cpfl.devices import availability, fleet
from cpfl.errors import CpflError, DataError, one_sentence
from cpfl.settings import Experiment

IMAGE = encode(np.zeros((8, 8), np.uint8))
SHARD = "train-00000-of-00001.parquet"
DEEP = "[" * 100_000 + "]" * 100_000


def refused(call: Callable[[], object], *parts: str) -> str:
    """The sentence of a refusal, which names these."""
    with pytest.raises(CpflError) as caught:
        call()
    sentence = str(caught.value)
    for part in parts:
        assert part in sentence
    assert "\n" not in sentence
    assert len(one_sentence(sentence)) < 500
    return sentence


def read(folder: Path) -> Callable[[], object]:
    return lambda: parquet.read(folder, "train")


def experiment(**data: Any) -> Experiment:
    return Experiment(clients=4, cohorts=2, data={"train": "given", "public": "given", **data})


def given(y: list[int]) -> federated.Given:
    x = np.zeros((len(y), 1, 8, 8), np.uint8)
    return federated.Given(Samples(x, np.array(y)), Samples(x, np.array(y)), Samples(x))


def test_a_label_far_beyond_the_samples() -> None:
    labels = [0] * 39 + [10**6]
    refused(lambda: federated.load(experiment(), [], given(labels)), "1000000", "40 samples", "set data.classes")
    labels[-1] = 50_000
    refused(lambda: federated.load(experiment(), [], given(labels)), "50000", "40 samples", "set data.classes")
    assert federated.load(experiment(classes=60_000), [], given(labels)).classes == 60_000
    assert federated.load(experiment(), [], given([0] * 39 + [999])).classes == 1000  # a few samples of many classes


def test_classes_that_nobody_has_change_no_split() -> None:
    y = np.array([0, 3, 3, 0, 7] * 20)
    owner = dirichlet(y, 4, 0.5, 1, "last")
    np.testing.assert_array_equal(owner[y == 3], dirichlet(y[y != 7], 4, 0.5, 1, "last")[y[y != 7] == 3])


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([[0], [1]]),
        pa.array([0, 1], pa.timestamp("us")),
        pa.array([0, 1], pa.date32()),
        pa.array([0.5, 1.5]),
        pa.array([None, None], pa.null()),
        pa.array([b"a", b"b"]),
        pa.array([{"a": 0}, {"a": 1}]),
    ],
)
def test_labels_of_other_types(tmp_path: Path, labels: pa.Array) -> None:
    write_shard(tmp_path / SHARD, [IMAGE, IMAGE], label=labels)
    refused(read(tmp_path), "label", str(tmp_path))


@pytest.mark.parametrize("other", [pa.array([[0], [1]]), pa.array([0, 1], pa.timestamp("us"))])
def test_shards_whose_labels_differ(tmp_path: Path, other: pa.Array) -> None:
    write_shard(tmp_path / "train-00000-of-00002.parquet", [IMAGE, IMAGE], label=[0, 1])
    write_shard(tmp_path / "train-00001-of-00002.parquet", [IMAGE, IMAGE], label=other)
    refused(read(tmp_path), str(tmp_path), "differ")


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.table([pa.array([IMAGE]), pa.array([0]), pa.array([1])], names=["image", "label", "label"])
    pq.write_table(table, tmp_path / SHARD)
    refused(read(tmp_path), SHARD, "label")


@pytest.mark.parametrize("held", [pa.array([1]), pa.array(["text"]), pa.array([[b"x"]])])
def test_image_bytes_of_another_type(tmp_path: Path, held: pa.Array) -> None:
    pq.write_table(pa.table({"image": pa.StructArray.from_arrays([held], ["bytes"])}), tmp_path / SHARD)
    refused(read(tmp_path), "image", SHARD)


def test_a_shard_without_the_image_column(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000-of-00002.parquet", [IMAGE], label=[0])
    pq.write_table(pa.table({"label": [0]}), tmp_path / "train-00001-of-00002.parquet")
    refused(read(tmp_path), "train-00001-of-00002.parquet", "image")


def test_a_gap_in_a_dictionary_is_nobodys_value(tmp_path: Path) -> None:
    writers = pa.array(["a", None, "b"]).dictionary_encode()
    write_shard(tmp_path / SHARD, [IMAGE] * 3, writer=writers)
    samples = parquet.read(tmp_path, "train")
    assert samples is not None
    assert samples.columns["writer"].tolist() == ["a", "", "b"]


def test_a_row_that_names_a_value_there_is_not(tmp_path: Path) -> None:
    """Every byte of the values of a column of text is changed, one after the other."""
    file = tmp_path / SHARD
    pq.write_table(pa.table({"image": [{"bytes": IMAGE, "path": ""}] * 3, "writer": ["a", "b", "c"]}), file)
    column = next(
        one for one in map(pq.read_metadata(file).row_group(0).column, range(3)) if one.path_in_schema == "writer"
    )
    content, damaged = file.read_bytes(), 0
    for place in range(column.dictionary_page_offset, column.dictionary_page_offset + column.total_compressed_size):
        file.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        try:
            parquet.read(tmp_path, "train")
        except DataError as error:
            damaged += SHARD in str(error)
    assert damaged > 3


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_shard_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / SHARD)
    refused(read(tmp_path), SHARD, "not a file")
    assert sources.available([tmp_path.parent])  # listing goes on


def test_a_name_that_announces_a_billion_shards(tmp_path: Path) -> None:
    write_shard(tmp_path / f"train-00000-of-{10**15}.parquet", [IMAGE])
    refused(read(tmp_path), "train-00001-of", "missing")


def test_a_parquet_file_of_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFL_MAX_GB", "0.4")
    size = 4_000_000
    block = pa.table({"label": pa.array(np.zeros(size, np.int64))})
    with pq.ParquetWriter(tmp_path / SHARD, block.schema) as writer:
        for _ in range(15):
            writer.write_table(block, row_group_size=size)
    assert (tmp_path / SHARD).stat().st_size < 300_000
    refused(read(tmp_path), str(tmp_path), "0.5 GB", "0.4 GB are allowed", "CPFL_MAX_GB=1")


def test_a_parquet_file_of_repeated_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFL_MAX_GB", "0.1")
    long = pa.DictionaryArray.from_arrays(np.zeros(2000, np.int32), pa.array(["x" * 1_000_000]))
    write_shard(tmp_path / SHARD, [IMAGE] * 2000, writer=long)
    assert (tmp_path / SHARD).stat().st_size < 200_000
    refused(read(tmp_path), "writer", "0.1 GB are allowed", "CPFL_MAX_GB=2")


def test_images_that_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = encode(np.zeros((1000, 1000), np.uint8))
    write_shard(tmp_path / SHARD, [large] * 50)
    monkeypatch.setenv("CPFL_MAX_GB", "0.04")
    refused(read(tmp_path), str(tmp_path), "CPFL_MAX_GB")
    monkeypatch.setenv("CPFL_MAX_GB", "0.05")
    assert parquet.read(tmp_path, "train") is not None


@pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf"])
def test_the_limit_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    write_shard(tmp_path / SHARD, [IMAGE])
    monkeypatch.setenv("CPFL_MAX_GB", value)
    refused(read(tmp_path), "CPFL_MAX_GB", value)


def archive(path: Path, *members: tuple[str, int], kind: bytes = tarfile.REGTYPE) -> None:
    """A compressed archive of zeros."""
    zeros = b"\0" * 1_000_000
    with gzip.open(path, "wb", compresslevel=1) as file:
        for name, size in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = size, kind
            file.write(info.tobuf())
            for start in range(0, -(-size // 512) * 512, len(zeros)):
                file.write(zeros[: -(-size // 512) * 512 - start])


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE])
@pytest.mark.parametrize("name", ["cifar-10-batches-bin/data_batch_1.bin", "other"])
def test_an_archive_that_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes) -> None:
    monkeypatch.setenv("CPFL_MAX_GB", "0.01")
    packed = tmp_path / "cifar-10-binary.tar.gz"
    archive(packed, (name, 50_000_000), ("last", 1), kind=kind)
    assert packed.stat().st_size < 400_000
    refused(lambda: archives.read(tmp_path, "cifar10", "train"), packed.name, "0.01 GB", "CPFL_MAX_GB=1")


def test_an_archive_of_many_members(tmp_path: Path) -> None:
    archive(tmp_path / "cifar-10-binary.tar.gz", *((f"m{k}", 0) for k in range(2000)))
    refused(lambda: archives.read(tmp_path, "cifar10", "train"), "cifar-10-binary.tar.gz", "1,000 members")


def test_a_file_with_holes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for k in range(1, 6):
        (folder / f"data_batch_{k}.bin").touch()
        os.truncate(folder / f"data_batch_{k}.bin", 10**13)
    refused(lambda: archives.read(tmp_path, "cifar10", "train"), "data_batch_1.bin", "10,000.0 GB")


def test_a_mat_file_that_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 5000), np.uint8), "y": [1]}, do_compression=True)
    monkeypatch.setenv("CPFL_MAX_GB", "0.01")
    refused(lambda: archives.read(tmp_path, "svhn", "train"), "train_32x32.mat", "CPFL_MAX_GB")
    cells = np.empty(1, object)
    cells[0] = "x"
    savemat(tmp_path / "train_32x32.mat", {"X": cells, "y": [1]})
    refused(lambda: archives.read(tmp_path, "svhn", "train"), "train_32x32.mat", "cell")


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        '{"users": 5, "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[' + "9" * 5000 + ']], "y": [1]}}}',
        '{"users": ["a"], "user_data": []}',
        '{"users": [["a"]], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[' + ",".join(["0"] * 784) + ']], "y": [[1]]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": 1, "y": 1}}}',
        "\x00",
    ],
)
def test_hostile_leaf(tmp_path: Path, text: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(text)
    refused(lambda: archives.read(tmp_path, "LEAF", "train"), "a.json")


def test_a_folder_for_leafs_json(tmp_path: Path) -> None:
    (tmp_path / "train" / "a.json").mkdir(parents=True)
    refused(lambda: archives.read(tmp_path, "LEAF", "train"), "a.json", "directory")


def test_a_writer_with_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPFL_MAX_GB", "0.01")
    name, pixels = "w" * 1_000_000, [0.0] * 784
    tree = {"users": [name], "user_data": {name: {"x": [pixels] * 5, "y": [0] * 5}}}
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(json.dumps(tree))
    refused(lambda: archives.read(tmp_path, "LEAF", "train"), "CPFL_MAX_GB")


@pytest.mark.parametrize(
    "text", [DEEP, '{"a": {"active": [1' + "0" * 5000 + "]}}", '{"a": 1' + "0" * 400 + "}", "[]", "5"]
)
def test_hostile_availability(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    refused(lambda: availability.read(path), "trace.json")


@pytest.mark.parametrize("cell", ["9" * 200_000, "9" * 5000, "x", "", "\x00"])
def test_hostile_device_traces(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"computation_ms_per_sample,communication_kbps\n1,{cell}\n")
    refused(lambda: fleet.read_trace(path), "trace.csv")


def test_a_device_trace_that_is_a_folder_or_deep(tmp_path: Path) -> None:
    (tmp_path / "client_device_capacity.csv").mkdir()
    refused(lambda: fleet.read_trace(tmp_path / "client_device_capacity.csv"), "client_device_capacity.csv")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({10**6000: {"computation": 1, "communication": 1}}))
    refused(lambda: fleet.read_trace(tmp_path / "a.pkl"), "a.pkl")


@pytest.mark.parametrize("name", ["a\0b", "./a\0b", "x" * 300, "./" + "x" * 300, "\udcff", "~nobody-at-all/x"])
def test_names_of_sets(tmp_path: Path, name: str) -> None:
    refused(lambda: sources.load(name, "train", [tmp_path]))
    refused(lambda: fleet.find_trace("devices.trace", name, [tmp_path], ["*"], "a file"), "devices.trace")


@pytest.mark.parametrize("variable", ["CPFL_DATA", "CPFL_CACHE"])
def test_a_home_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~nobody-at-all/x")
    refused(lambda: sources.search_roots(None), variable, "~nobody-at-all")


def test_class_names_that_are_no_text(tmp_path: Path) -> None:
    for names in ('["a", "\\ud800"]', DEEP):
        described = '{"info": {"features": {"label": {"names": ' + names + "}}}}"
        schema = pa.schema({"image": pa.binary()}, metadata={"huggingface": described})
        pq.write_table(pa.table({"image": pa.array([IMAGE], pa.binary())}, schema=schema), tmp_path / SHARD)
        assert parquet.class_names(tmp_path) == []


@pytest.mark.parametrize("name", ["a\0b", "\udcff", "x" * 300])
def test_names_of_imports(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.png").write_bytes(IMAGE)
    refused(lambda: import_folder(tmp_path, name, tmp_path / "out"))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_label_folder_that_is_no_text(tmp_path: Path) -> None:
    label = tmp_path / "in" / os.fsdecode(b"\xff")
    label.mkdir(parents=True)
    (label / "a.png").write_bytes(IMAGE)
    sentence = refused(lambda: import_folder(tmp_path / "in", "x", tmp_path / "out"), "UTF-8")
    assert one_sentence(sentence).isascii()


def test_what_killed_processes_left_goes(tmp_path: Path, cache: Path) -> None:
    photos, root = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    (photos / "a.png").write_bytes(IMAGE)
    for left in (root / ".leaves-killed" / "leaves", cache / "decoded" / "partial-killed"):
        left.mkdir(parents=True)
        (left / "half.parquet").write_bytes(b"PAR1")
    import_folder(photos, "leaves", root)
    assert [path.name for path in root.iterdir()] == ["leaves"]
    assert parquet.read(root / "leaves", "train") is not None
    assert not list((cache / "decoded").glob("partial-*"))


def test_a_download_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "cifar10" / ".partial-killed").mkdir(parents=True)
    (tmp_path / "cifar10" / ".partial-killed" / "half").write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be reached"):
        catalogue.fetch("cifar10", tmp_path, "http://127.0.0.1:9")
    assert not (tmp_path / "cifar10").exists()


def test_what_a_living_process_makes_stays(tmp_path: Path) -> None:
    from cpfl.scratch import scratch_folder

    with scratch_folder(tmp_path, ".a-") as first, scratch_folder(tmp_path, ".a-") as second:
        assert first != second
        assert first.is_dir()
    assert not list(tmp_path.iterdir())
