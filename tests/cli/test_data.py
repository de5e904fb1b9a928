"""cpfl data: list, get, check, import, and training on what came of it."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from tests.pages import find, noted

from cpfl.data import embedded
from cpfl.data.catalogue import CATALOGUE, Entry, RemoteFile

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")

TRACE = pickle.dumps({i: {"computation": 20.0 + i, "communication": 1000.0 * (i + 1)} for i in range(50)})


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that offers a small device trace under FedScale's published name."""
    published = tmp_path / "published"
    published.mkdir()
    (published / "client_device_capacity").write_bytes(TRACE)
    real = CATALOGUE["fedscale"]
    file = RemoteFile(real.files[0].url, f"sha256:{hashlib.sha256(TRACE).hexdigest()}", len(TRACE))
    monkeypatch.setitem(
        CATALOGUE, "fedscale", Entry(real.name, real.what, real.expects, source=real.source, files=(file,))
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def draw(folder: Path, count: int, seed: int, labels: tuple[str, ...] = ("dark", "light"), side: int = 12) -> None:
    rng = np.random.default_rng(seed)
    for number, label in enumerate(labels):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            pixels = (rng.integers(0, 100, (side, side)) + 120 * number).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Dark and light pictures to train on, and pictures of nothing in particular."""
    draw(tmp_path / "photos" / "train", 60, 1)
    draw(tmp_path / "photos" / "test", 20, 2)
    (tmp_path / "others").mkdir()
    rng = np.random.default_rng(3)
    for i in range(80):
        Image.fromarray(rng.integers(0, 256, (12, 12), dtype=np.uint8)).save(tmp_path / "others" / f"{i}.png")
    return tmp_path


def test_list(cpfl_command: Command) -> None:
    sets = {s["name"]: s for s in cpfl_command("data", "list", "--json").good().json}
    assert sets["digits"]["format"] == "built in"
    assert sets["cifar10"]["format"] == "missing"
    assert sets["cifar10"]["downloadable"]
    assert "parquet" in sets["mnist-writers"]["expects"]
    out = cpfl_command("data", "list").good().out
    assert all(name in out for name in sets)
    assert "cpfl data get" in out


def test_get_from_a_mirror_then_use_it(cpfl_command: Command, mirror: str, tmp_path: Path) -> None:
    answer = cpfl_command("data", "get", "fedscale", "--mirror", mirror, "--data", "data").good()
    assert "fedscale is in data/fedscale" in answer.out
    assert (tmp_path / "data" / "fedscale" / "client_device_capacity").read_bytes() == TRACE
    words = ("--data", "data", "--set", "devices.trace=fedscale", "--set", "clients=10", "--out", "run", "--json")
    fast = cpfl_command("run", "digits", *QUICK, *words).good().json
    assert fast["hours"] > 0


def test_get_twice_downloads_once(cpfl_command: Command, mirror: str, tmp_path: Path) -> None:
    cpfl_command("data", "get", "fedscale", "--mirror", mirror, "--data", "data").good()
    (tmp_path / "published" / "client_device_capacity").unlink()
    cpfl_command("data", "get", "fedscale", "--mirror", mirror, "--data", "data").good()


def test_get_refuses_a_wrong_file(cpfl_command: Command, mirror: str, tmp_path: Path) -> None:
    (tmp_path / "published" / "client_device_capacity").write_bytes(TRACE[:-10])
    answer = cpfl_command("data", "get", "fedscale", "--mirror", mirror, "--data", "data")
    assert answer.code == 2
    assert "wrong checksum" in answer.err
    assert list((tmp_path / "data").rglob("client*")) == []


@pytest.mark.parametrize(
    ("name", "expected"), [("digits", "built in"), ("digts", "not a set"), ("mnist-writers", "train-*.parquet")]
)
def test_get_of_what_cannot_be_got(cpfl_command: Command, name: str, expected: str) -> None:
    answer = cpfl_command("data", "get", name)
    assert answer.code == 2
    assert expected in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_missing_set_without_a_network(
    cpfl_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The download is tried; then a sentence says what to put where."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    answer = cpfl_command("run", "cifar10", "--download", "--data", tmp_path, "--out", "run")
    assert answer.code == 2
    assert "cifar-10-binary.tar.gz" in answer.err
    assert "put it at" in answer.err
    assert not (tmp_path / "run").exists()


def test_import_then_train_then_predict(cpfl_command: Command, photos: Path) -> None:
    said = cpfl_command("data", "import", "lights", "photos", "--data", "data").good().out
    assert "--set data.train=lights" in said
    cpfl_command("data", "import", "noise", "others", "--data", "data").good()
    sets = {s["name"]: s for s in cpfl_command("data", "list", "--data", "data", "--json").good().json}
    assert sets["lights"]["format"] == sets["noise"]["format"] == "parquet"

    words = (
        "--data", "data", "--set", "data.train=lights", "--set", "data.public=noise", "--set", "clients=4",
        "--set", "cohorts=2", "--set", "data.split=iid", "--set", "distillation.epochs=30", "--set", "max_rounds=20",
    )  # fmt: skip
    summary = cpfl_command("run", "digits", *words, "--out", "run", "--json").good().json
    assert summary["teacher_accuracy_mean"] > 90
    about = json.loads((photos / "run" / "run.json").read_text())
    assert about["shape"] == [1, 12, 12]
    assert about["classes"] == 2
    assert about["samples"] == {"train": 120, "test": 40, "public": 80}
    rows = cpfl_command("predict", "run", "photos/test", "--json").good().json
    right = [row["class"] == ("/light/" in row["image"]) for row in rows]
    assert {row["name"] for row in rows} <= {"dark", "light"}
    assert 100 * np.mean(right) == pytest.approx(summary["student_accuracy"])
    # --data need not be said again: the run remembers
    cpfl_command("distill", "run", "--weights", "uniform").good()


def test_a_folder_of_images_as_the_page_has_it(cpfl_command: Command, photos: Path) -> None:
    """The page's file and its commands, but for fewer rounds."""
    page = find("custom-data-and-model.md").read_text()
    (file,) = re.findall(r'^```toml\n(name = "leaves".*?)^```', page, re.M | re.S)
    (photos / "leaves.toml").write_text(f"max_rounds = 2\n{file}\n[distillation]\nepochs = 1\n")
    *imports, run, predict = noted("custom-data-and-model.md", "tests/cli/test_data.py")
    for words in imports:
        cpfl_command(*words).good()
    cpfl_command(*run).good()
    assert len(cpfl_command(*predict, "--json").good().json) == 40
    assert json.loads((photos / "runs" / "leaves" / "summary.json").read_text())["cohorts"] == 4


def test_import_refuses_a_known_name_and_a_second_time(cpfl_command: Command, photos: Path) -> None:
    assert "known set" in cpfl_command("data", "import", "digits", "photos", "--data", "data").err
    cpfl_command("data", "import", "lights", "photos", "--data", "data").good()
    again = cpfl_command("data", "import", "lights", "photos", "--data", "data")
    assert again.code == 2
    assert "exists already" in again.err
    assert cpfl_command("data", "import", "x", "nowhere", "--data", "data").code == 2
    assert {path.name for path in (photos / "data").iterdir()} == {"lights"}


def test_check_of_clean_data(cpfl_command: Command) -> None:
    answer = cpfl_command("data", "check", "digits").good()
    assert "no image is in more than one of them" in answer.out
    assert cpfl_command("data", "check", "digits", "--json").good().json["shared"] == []


def test_check_finds_what_is_shared(cpfl_command: Command, photos: Path) -> None:
    """The public set has five of the test set's pictures: exit code 1, and which."""
    for i in range(5):
        (photos / "others" / f"copy{i}.png").write_bytes((photos / "photos/test/light" / f"{i}.png").read_bytes())
    cpfl_command("data", "import", "lights", "photos", "--data", "data").good()
    cpfl_command("data", "import", "noise", "others", "--data", "data").good()
    words = ("data", "check", "digits", "--set", "data.train=lights", "--set", "data.public=noise", "--data", "data")
    answer = cpfl_command(*words)
    assert answer.code == 1
    assert "5" in answer.out
    (shared,) = cpfl_command(*words, "--json").json["shared"]
    assert shared["images"] == 5
    assert "test" in shared["first"]
    assert "public" in shared["second"]


def test_public_images_of_another_size_are_fitted(cpfl_command: Command, photos: Path) -> None:
    cpfl_command("data", "import", "noise", "others", "--data", "data").good()
    for fit in ("resize", "crop"):
        words = ("--set", "data.public=noise", "--set", f"data.public_fit={fit}", "--data", "data", "--out", fit)
        cpfl_command("run", "digits", *QUICK, *words).good()
        assert json.loads((photos / fit / "run.json").read_text())["samples"]["public"] == 80


def test_the_data_folder_can_be_given_once(
    cpfl_command: Command, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpfl_command("data", "import", "noise", "others", "--data", "data").good()
    monkeypatch.setenv("CPFL_DATA", str(photos / "data"))
    words = ("--set", "data.public=noise", "--set", "data.public_fit=resize", "--out", "run")
    cpfl_command("run", "digits", *QUICK, *words).good()


def test_a_relative_path_still_works_from_elsewhere(cpfl_command: Command, photos: Path) -> None:
    """A run started with paths relative to one folder is distilled from another."""
    cpfl_command("data", "import", "noise", "others", "--data", "data").good()
    (photos / "trace.csv").write_text("computation,communication\n50,6000\n80,9000\n")
    words = (
        "--set", "data.public=./data/noise", "--set", "data.public_fit=resize",
        "--set", "devices.trace=trace.csv", "--out", "run",
    )  # fmt: skip
    cpfl_command("run", "digits", *QUICK, *words).good()
    (photos / "elsewhere").mkdir()
    cpfl_command("distill", photos / "run", "--weights", "uniform", cwd=photos / "elsewhere").good()


def test_the_embedded_sets_are_what_the_list_says() -> None:
    assert len(embedded.digits("train")) + len(embedded.digits("test")) == 1797
    assert len(embedded.letters()) == 4000
