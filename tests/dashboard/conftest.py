"""Dashboards to query, and runs to follow."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import reseal
from tests.processes import CPFL, Program

PATIENT = "tests.dashboard.patient:dashboard"


@dataclass
class Served:
    """`cpfl dashboard` as a user starts it, in a process of its own."""

    process: Program
    port: int

    @property
    def said(self) -> str:
        """All its output so far."""
        return self.process.out + self.process.err

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
        """One request and its answer; headers are named host, if_none_match …"""
        line = http.client.HTTPConnection("127.0.0.1", self.port)
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
        self.process.interrupt()
        return self.process.wait()


@contextlib.contextmanager
def dashboards(root: Path) -> Iterator[Callable[..., Served]]:
    """Starts dashboards over subfolders of this one, at free ports; all end with the context."""
    started: list[Program] = []

    def start(folder: Path | str, *words: str, program: str = CPFL) -> Served:
        process = Program(("dashboard", folder, "--port", "0", *words), root, os.environ, program)
        started.append(process)
        found = process.until(lambda: re.search(r"dashboard: http://\S+:(\d+)/", process.out))
        return Served(process, int(found[1]))

    try:
        yield start
    finally:
        end(started)


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a dashboard over a folder of this test's own."""
    with dashboards(tmp_path) as start:
        yield start


@pytest.fixture
def patient(dashboard: Callable[..., Served]) -> Callable[..., Served]:
    """Starts a dashboard that calls no run quiet."""
    return functools.partial(dashboard, program=PATIENT)


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
        reseal(path.parent)
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
def training(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts runs of the digits in processes of their own, or sweeps of them over several `numbers` of cohorts."""
    started: list[Program] = []

    def start(out: Path, numbers: str = "", **settings: object) -> Program:
        words = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        command = ("sweep", "digits", "--cohorts", numbers) if numbers else ("run", "digits")
        started.append(Program((*command, *words, "--engine", "reference", "--out", out), tmp_path, os.environ))
        return started[-1]

    yield start
    end(started)


def end(processes: list[Program]) -> None:
    for process in processes:
        process.kill()
        process.communicate()
