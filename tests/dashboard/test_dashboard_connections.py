"""Many browsers at once, and clients that never finish what they ask: the dashboard's connections are bounded."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpfl.dashboard.server import Server

GET = b"GET /fresh.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
DAY = 86_400.0  # seconds, by the test's clock; no real wait is that long
Serving = Callable[[], None]


class Clock:
    """Stands still until the test moves it, and counts how often it was read."""

    def __init__(self) -> None:
        self.now, self.reads = 0.0, threading.Semaphore(0)

    def __call__(self) -> float:
        self.reads.release()
        return self.now


@pytest.fixture
def server(finished: Path, tmp_path: Path) -> Iterator[Server]:
    """A dashboard over one run that listens and does not answer yet."""
    shutil.copytree(finished, tmp_path / "runs" / "one")
    with Server(tmp_path / "runs", "127.0.0.1", 0) as made:
        made.request_seconds = DAY
        yield made


@pytest.fixture
def serve(server: Server) -> Iterator[Serving]:
    """Lets it answer."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    yield thread.start
    server.shutdown()
    thread.join()


@contextlib.contextmanager
def line_to(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(server.server_address[:2]) as line:  # type: ignore[arg-type]
        yield line


def status(line: socket.socket) -> int:
    """Of the next answer, which is read to its end."""
    with http.client.HTTPResponse(line) as answer:
        answer.begin()
        assert len(answer.read()) > 0
        return answer.status


def test_a_hundred_pages_at_once(server: Server, serve: Serving) -> None:
    """All of them connect before the first is answered."""
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(line_to(server)) for _ in range(100)]
        for line in lines:
            line.sendall(GET.replace(b"/fresh.json", b"/"))
        serve()
        assert [status(line) for line in lines] == [200] * 100
        for line in lines:  # the pages stay open, and ask again
            line.sendall(GET)
        assert [status(line) for line in lines] == [200] * 100


def test_a_byte_now_and_then_holds_nothing_for_ever(server: Server, serve: Serving) -> None:
    """The time is that of the whole request, not of a byte."""
    server.clock = clock = Clock()
    serve()
    with line_to(server) as line:
        clock.reads.acquire()  # the request may begin
        for _ in range(10):
            clock.reads.acquire()  # how long to wait for the next byte
            clock.now += DAY / 10
            line.sendall(b"G")
        assert line.recv(1) == b""


def test_a_page_that_asks_again_is_not_cut_off(server: Server, serve: Serving) -> None:
    """Each request has the whole time."""
    server.clock = clock = Clock()
    serve()
    with line_to(server) as line:
        for _ in range(5):
            line.sendall(GET)
            assert status(line) == 200
            clock.now += 0.9 * DAY


def test_one_too_many_is_told_so(server: Server, serve: Serving) -> None:
    """Those who came before are served, and whoever leaves makes room."""
    server.connections = 3
    serve()
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(line_to(server)) for _ in range(3)]
        for line in lines:
            line.sendall(GET)
            assert status(line) == 200
        with line_to(server) as line:
            assert status(line) == 503
            assert line.recv(1) == b""
        for line in lines:
            line.sendall(GET)
            assert status(line) == 200
        lines[0].close()
        answers = {503}
        while answers == {503}:
            with line_to(server) as line:
                line.sendall(GET)
                answers = {status(line)}
        assert answers == {200}


def test_a_connection_without_a_thread_takes_no_place(
    server: Server, serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread could be started, others are answered as soon as one can."""
    server.connections = 1

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    near, far = socket.socketpair()
    with near, far, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            server.process_request(far, "nobody")
    serve()
    with line_to(server) as line:
        line.sendall(GET)
        assert status(line) == 200


@pytest.mark.parametrize("when", ["while it is accepted", "later", "never"])
def test_what_fails_because_the_server_ends_is_not_shown(
    when: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the main thread still accepts a connection closes it under the thread that answers."""
    answering, ended, start = threading.Event(), threading.Event(), server.process_request

    def answer() -> tuple[bytes, str]:
        answering.set()
        assert ended.wait(60)
        raise OSError("a bug, or Ctrl-C")

    def interrupted(request: socket.socket, address: object) -> None:
        start(request, address)
        assert answering.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(server.dashboard, "fresh", answer)
    if when == "while it is accepted":
        monkeypatch.setattr(server, "process_request", interrupted)
    before = set(threading.enumerate())
    with line_to(server) as line:
        line.sendall(GET)
        with contextlib.suppress(KeyboardInterrupt):
            server.handle_request()
        assert answering.wait(60)
        if when == "later":
            server.server_close()
        ended.set()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert ("a bug, or Ctrl-C" in capsys.readouterr().err) == (when == "never")
