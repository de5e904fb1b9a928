from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import cpfl
from cpfl.data import catalogue
from cpfl.data.catalogue import CATALOGUE, Entry, RemoteFile, fetch
from cpfl.errors import DataError

CONTENTS = {"first.bin": b"a" * 3_000_000, "second.bin": b"b" * 10}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Broken(BaseHTTPRequestHandler):
    """Promises more than it sends."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5000000")
        self.end_headers()
        self.wfile.write(b"a" * 1000)

    def log_message(self, *_: object) -> None:
        pass


def serve(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def mirror(published: Path) -> Iterator[str]:
    yield from serve(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published))))


@pytest.fixture
def broken() -> Iterator[str]:
    yield from serve(ThreadingHTTPServer(("127.0.0.1", 0), Broken))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CONTENTS.values()
    files = (
        RemoteFile("http://example.invalid/x/first.bin", f"md5:{hashlib.md5(first).hexdigest()}", len(first)),
        RemoteFile("http://example.invalid/y/second.bin", f"sha256:{hashlib.sha256(second).hexdigest()}", len(second)),
    )
    monkeypatch.setitem(CATALOGUE, "pair", Entry("pair", "two files", "first.bin and second.bin", files=files))


def test_download_with_progress(tmp_path: Path, mirror: str) -> None:
    seen: list[tuple[int, int]] = []
    folder = fetch("pair", tmp_path / "root", mirror + "/", lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "root" / "pair"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENTS
    assert {total for _, total in seen} == {3_000_010}
    done = [bytes_ for bytes_, _ in seen]
    assert done == sorted(done)
    assert len(done) > 3
    assert done[-1] == 3_000_010


def test_whole_files_are_kept_and_damaged_ones_replaced(tmp_path: Path, mirror: str, published: Path) -> None:
    folder = fetch("pair", tmp_path, mirror)
    (folder / "second.bin").write_bytes(b"damaged")
    (published / "first.bin").unlink()  # a second download of it would fail
    fetch("pair", tmp_path, mirror)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == CONTENTS


def test_wrong_checksum(tmp_path: Path, mirror: str, published: Path) -> None:
    (published / "second.bin").write_bytes(b"not it")
    with pytest.raises(
        DataError, match=r"second\.bin has the wrong checksum: expected sha256:.*removed.*pair/second\.bin"
    ):
        fetch("pair", tmp_path, mirror)
    assert [file.name for file in (tmp_path / "pair").iterdir()] == ["first.bin"]


def test_missing_on_the_server(tmp_path: Path, mirror: str, published: Path) -> None:
    (published / "first.bin").unlink()
    with pytest.raises(
        DataError, match=r"127.*/first\.bin cannot be reached \(HTTP 404\): .*put it at .*pair/first\.bin"
    ):
        fetch("pair", tmp_path, mirror)
    assert not (tmp_path / "pair").exists()


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DataError, match=rf"{address}/first\.bin cannot be reached .*put it at .*pair/first\.bin"):
            fetch("pair", tmp_path, address)
    assert not (tmp_path / "pair").exists()


def test_broken_transfer(tmp_path: Path, broken: str) -> None:
    with pytest.raises(DataError, match=r"first\.bin (broke off|has the wrong checksum)"):
        fetch("pair", tmp_path, broken)
    assert not (tmp_path / "pair").exists()


def test_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TIMEOUT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DataError, match=r"cannot be reached .*timed out"):
            fetch("pair", tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_folder_that_cannot_be_made(tmp_path: Path, mirror: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/pair cannot be made"):
        fetch("pair", tmp_path / "file", mirror)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "'nothing' is not a set that can be downloaded: those are .*cifar10"),
        ("digits", "built in"),
        ("emnist-letters", r"no published file: put it at .*emnist-letters, expected there: train-\*\.parquet"),
    ],
)
def test_not_downloadable(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fetch(name, tmp_path)


def test_mirror_must_be_an_address(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must begin with http"):
        fetch("pair", tmp_path, "file:///etc")


def test_catalogue_checksums_are_well_formed() -> None:
    for entry in CATALOGUE.values():
        for file in entry.files:
            kind, digest = file.checksum.split(":")
            assert len(digest) == {"md5": 32, "sha256": 64}[kind]
            assert int(digest, 16)
            assert file.size > 0
            assert file.url.startswith("http")


@pytest.mark.parametrize("permission", [False, True, "no", "yes"])
def test_a_run_downloads_only_what_it_may(
    permission: bool | str, tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is asked once, with the names and the sizes; a refusal names the commands."""
    files = tuple(replace(one, url=f"{mirror}/{one.name}") for one in CATALOGUE["pair"].files)
    monkeypatch.setitem(CATALOGUE, "pair", replace(CATALOGUE["pair"], files=files))
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return permission == "yes"

    root = tmp_path / "data"
    root.mkdir()
    answer = ask if isinstance(permission, str) else permission
    with pytest.raises(DataError) as refused:  # what is downloaded is no images
        cpfl.run("digits", data=root, settings={"data.train": "pair"}, out=tmp_path / "run", download=answer)
    assert (root / "pair").exists() == (permission in (True, "yes"))
    if permission in (False, "no"):
        assert "pair (3 MB) is not on this machine: cpfl data get pair" in str(refused.value)
    assert asked == [f"pair (3 MB) is not on this machine. Download to {root}?"] * isinstance(permission, str)
    assert not (tmp_path / "run").exists()
