"""Dashboards to query, and runs to follow."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.hold import PATH


@dataclass
class Served:
    """`cpfl dashboard` as a user starts it, in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    said: str

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
        """One request and its answer; headers are named host, if_none_match …"""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            line.putrequest(method, path, skip_host="host" in headers)
            for key, value in headers.items():
                line.putheader(key.replace("_", "-"), value)
            line.endheaders()
            answer = line.getresponse()
            return answer, answer.read().decode()
        finally:
            line.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=120)


@contextlib.contextmanager
def dashboards(root: Path) -> Iterator[Callable[..., Served]]:
    """Starts dashboards over subfolders of this one, at free ports; all end with the context."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path | str, *words: str) -> Served:
        process = cpfl("dashboard", folder, "--port", "0", *words, cwd=root)
        started.append(process)
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if found := re.search(r"dashboard: http://\S+:(\d+)/", line):
                return Served(process, int(found[1]), said)
        raise AssertionError(f"the dashboard did not start: {said}")

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a dashboard over a folder of this test's own."""
    with dashboards(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def dashboard_of_one(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard over one finished run, for tests that only ask it something; a secret lies beside what it shows."""
    root = tmp_path_factory.mktemp("dashboard-of-one")
    shutil.copytree(finished, root / "runs" / "one")
    (root / "secret").write_text("secret")
    with dashboards(root) as start:
        yield start("runs")


def three(root: Path, finished: Path, unfinished: Path) -> Path:
    """A finished run and two that are not, in a subfolder."""
    runs = root / "runs"
    shutil.copytree(finished, runs / "done")
    for name, seed in (("open", 90), ("later", 91)):
        shutil.copytree(unfinished, runs / name)
        path = runs / name / "experiment.toml"
        path.write_text(path.read_text().replace("seed = 90", f"seed = {seed}"))
    return runs


@pytest.fixture
def several(finished: Path, unfinished: Path, tmp_path: Path) -> Path:
    """A finished run and two that are not, to be changed."""
    return three(tmp_path, finished, unfinished)


@pytest.fixture(scope="module")
def dashboard_of_three(finished: Path, unfinished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard over a finished run and two that are not, for tests that only read it."""
    root = tmp_path_factory.mktemp("dashboard-of-three")
    three(root, finished, unfinished)
    with dashboards(root) as start:
        yield start("runs")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts runs of the digits in processes of their own."""
    started: list[subprocess.Popen[str]] = []

    def start(out: Path, **settings: object) -> subprocess.Popen[str]:
        words = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        started.append(cpfl("run", "digits", *words, "--engine", "reference", "--out", out, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def cpfl(*words: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cpfl", *map(str, words)],
        cwd=cwd,
        env=os.environ | PATH,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for something to become true."""

    def wait(what: Callable[[], Any], seconds: float = 120) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := what():
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s")

    return wait
