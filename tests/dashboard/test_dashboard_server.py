"""cpfl dashboard over HTTP: what it answers, what it refuses, how it begins and ends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.hold import Hold

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

    Start = Callable[..., Any]

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "runs" / "one")
    return tmp_path / "runs"


def test_the_page_and_what_keeps_it_fresh(dashboard: Start, runs: Path) -> None:
    served = dashboard("runs")
    page, text = served.ask("/")
    assert page.status == 200
    assert 'data-refresh="/fresh.json"' in text
    assert "One run, finished." in text
    assert page.headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert "http" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in page.headers
    fresh, text = served.ask("/fresh.json")
    assert json.loads(text).keys() == {"body", "figures", "explorers"}
    again, text = served.ask("/fresh.json", if_none_match=fresh.headers["ETag"])
    assert (again.status, text) == (304, "")
    head, text = served.ask("/", "HEAD")
    assert (head.status, text) == (200, "")
    assert int(head.headers["Content-Length"]) > 500_000
    assert served.stop() == 0


def test_it_can_only_be_read(dashboard_of_one: Any) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "MKCOL"):
        answer, _ = dashboard_of_one.ask("/", method)
        assert answer.status == 405, method
        assert answer.headers["Allow"] == "GET, HEAD"


def test_no_path_leads_to_a_file(dashboard_of_one: Any) -> None:
    for path in ("/../secret", "/%2e%2e/secret", "//secret", "/one/run.json", "/run.json", "/.", "file:///etc/passwd"):
        answer, text = dashboard_of_one.ask(path)
        assert answer.status == 404, path
        assert "secret" not in text
        assert "plan" not in text


def test_a_foreign_name_is_refused(dashboard_of_one: Any) -> None:
    """A page elsewhere may let its own name point to this machine: a browser would then read the answer to it."""
    for host in (
        "evil.example",
        f"evil.example:{dashboard_of_one.port}",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil",
    ):
        answer, text = dashboard_of_one.ask("/fresh.json", host=host)
        assert answer.status == 421, host
        assert "digits" not in text


def test_own_names_are_known(dashboard_of_one: Any) -> None:
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", f"127.0.0.1:{dashboard_of_one.port}", "[::1]:80"):
        assert dashboard_of_one.ask("/fresh.json", host=host)[0].status == 200, host


def test_another_host_is_warned_of(dashboard: Start, dashboard_of_one: Any, runs: Path) -> None:
    assert "warning" not in dashboard_of_one.said
    served = dashboard("runs", "--host", "0.0.0.0")
    assert "everyone who can reach 0.0.0.0 can read this page" in served.said
    assert served.ask("/fresh.json", host=socket.gethostname())[0].status == 200
    assert served.ask("/fresh.json", host="evil.example")[0].status == 421


def test_names_cannot_act(dashboard: Start, runs: Path) -> None:
    """Neither in the page nor in what keeps it fresh."""
    (runs / "one").rename(runs / EVIL)
    (runs / EVIL / "summary.json").unlink()
    served = dashboard("runs")
    for path in ("/", "/fresh.json"):
        _, text = served.ask(path)
        body = json.loads(text)["body"] if path != "/" else text
        assert "&lt;img src=x onerror=alert(1)&gt;" in body
        assert EVIL not in body


def test_runs_come_and_go(dashboard: Start, runs: Path, tmp_path: Path) -> None:
    shutil.move(runs / "one", tmp_path / "later")
    served = dashboard("runs")

    def body() -> str:
        return str(json.loads(served.ask("/fresh.json")[1])["body"])

    assert "There are no runs in this folder yet" in body()
    shutil.move(tmp_path / "later", runs / "one")
    served.process.until(lambda: "One run, finished." in body())
    shutil.rmtree(runs)
    served.process.until(lambda: "There are no runs in this folder yet" in body())


def test_a_busy_port_is_one_sentence(cpfl_command: Command, runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = cpfl_command("dashboard", "runs", "--port", port)
    assert answer.code == 2
    assert answer.err == f"cpfl: port {port} of 127.0.0.1 is in use: choose another port, or 0 for any that is free\n"
    assert answer.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing",), "there is no folder missing"),
        (("runs", "--port", "65536"), "--port"),
        (("runs", "--host", "203.0.113.7"), "host 203.0.113.7 is not an address of this machine"),
        (("runs", "--host", "no such host"), "host no such host is not known"),
    ],
)
def test_a_mistake_is_one_sentence(cpfl_command: Command, runs: Path, words: tuple[str, ...], said: str) -> None:
    answer = cpfl_command("dashboard", *words)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_ctrl_c_ends_it_while_somebody_is_connected(dashboard: Start, runs: Path) -> None:
    served = dashboard("runs")
    with socket.create_connection(("127.0.0.1", served.port)) as line:
        line.sendall(b"GET /fresh.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(12) == b"HTTP/1.1 200"
        assert served.stop() == 0
    assert "Traceback" not in served.said


def test_a_client_that_leaves_does_not_trouble_it(dashboard: Start, runs: Path) -> None:
    served = dashboard("runs")
    for _ in range(3):
        line = socket.create_connection(("127.0.0.1", served.port))
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset, not a farewell
        line.close()
    assert served.ask("/")[0].status == 200
    assert served.stop() == 0
    assert served.process.err == ""


def test_a_run_under_way_is_told_of(patient: Start, training: Start, tmp_path: Path) -> None:
    """A real run in a process of its own: throughput, the end, stops, then the distillation and the outcome."""
    (tmp_path / "runs").mkdir()
    served = patient("runs")
    hold = Hold(tmp_path, 3)
    settings = {"cohorts": 4, "max_rounds": 60, "stopping.patience": 10, "stopping.window": 3}
    process = training(tmp_path / "runs" / "live", **hold.settings(settings))

    def body() -> str:
        return str(json.loads(served.ask("/fresh.json")[1])["body"])

    process.until(lambda: "One run, in progress." in body())
    hold.allow(50)  # one of the cohorts stops before
    text = process.until(lambda: text if "Latest stops" in (text := body()) else "")
    assert " live</th>" in text
    hold.end()
    served.process.until(lambda: "One run, finished." in body())
    assert process.wait() == 0
    summary = json.loads((tmp_path / "runs" / "live" / "summary.json").read_text())
    assert f"{summary['student_accuracy']:.2f}" in body()


def test_an_interrupted_run_is_not_said_to_train(dashboard: Start, unfinished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unfinished, tmp_path / "runs" / "one"))
    long_ago = time.time() - 7200
    for path in [run / "run.json", *(run / "rounds").iterdir()]:
        os.utime(path, (long_ago, long_ago))
    _, text = dashboard("runs").ask("/")
    assert "quiet for 2.0 h; if it was interrupted, cpfl resume continues it" in text
    assert "One run, unfinished and quiet." in text
