"""Fixtures of all tests: a cache of its own, one thread, and the program as a user calls it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from tests.processes import Program

# A shell that starts the tests in the background makes them ignore Ctrl-C; some tests send one to their processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

with warnings.catch_warnings():  # typer takes names from click that click 8.4 calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import cpfl.cli

# Tests share the cores: threads of two processes would wait for each other, and what takes a second takes ten.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for what they start

# Examples are tested, not their duration: a machine that stalls for a moment is no failure.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")
SHARED = ("tests/cluster/", "tests/deploy/")  # folders whose tests share a cluster or a fleet
# Long files, roughly the longest first.
LONG = (
    "test_docs.py",
    "test_terminal.py",
    "engines/test_workers.py",
    "test_real_data.py",
    "engines/test_lanes.py",
    "runs/test_kill.py",
    "engines/test_rounds_engines.py",
    "cli/test_sweep.py",
    "dashboard/test_live_page.py",
    "report/test_browser.py",
    "runs/test_every_operation.py",
    "engines/test_schedule_workers.py",
    "engines/test_joint_engines.py",
    "test_effects.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shared folders and long files come first: started last, one would run alone while other workers are idle."""
    order = {name: number for number, name in enumerate([*SHARED, *(f"tests/{name}" for name in LONG)])}
    items.sort(key=lambda item: order.get(shared(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes whole files, because their tests share fixtures, and one worker takes all of a shared folder.
    (xdist's own groups, by marks, do not work with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared(nodeid)

    return Files(config, log)


def shared(nodeid: str) -> str:
    """What a test shares with others: its file, or its folder."""
    return next((folder for folder in SHARED if nodeid.startswith(folder)), nodeid.partition("::")[0])


@dataclass(frozen=True)
class Answer:
    """The result of a command: its output, its errors, its exit code."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)

    def good(self) -> Answer:
        """Itself, if the command succeeded."""
        assert self.code == 0, f"exit code {self.code}\n{self.err}\n{self.out}"
        return self


Command = Callable[..., Answer]


def call(*words: object, cwd: Path) -> Answer:
    """The console script in this process: main() with sys.argv and the working folder replaced."""
    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, Path.cwd())
    sys.argv = ["cpfl", *map(str, words)]
    os.chdir(cwd)
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cpfl.cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    return Answer(out.getvalue(), err.getvalue(), code)


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test sees the user's cache, data or terminal."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPFL_CACHE", str(folder))
        for name in ("CPFL_DATA", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture
def cpfl_command(tmp_path: Path) -> Command:
    """Runs the program in this process, in the test's own folder."""

    def run(*words: object, cwd: Path = tmp_path) -> Answer:
        return call(*words, cwd=cwd)

    return run


@pytest.fixture
def cpfl_process(tmp_path: Path) -> Command:
    """Runs the program as a process of its own, in the test's own folder."""

    def run(*words: object, **environment: str) -> Answer:
        process = Program(words, tmp_path, os.environ | environment)
        code = process.wait()
        return Answer(*process.communicate(), code)

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of digits with a snapshot of every second round; copy it before changing it."""
    folder = tmp_path_factory.mktemp("finished")
    call("run", "digits", *QUICK, "--set", "snapshots=2 rounds", "--out", "run", cwd=folder).good()
    return folder / "run"


class Interrupter(cpfl.Callback):
    """Ends a run with an exception after so many rounds of all cohorts together."""

    class Enough(Exception):
        """Takes the place of a kill."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, session: object, closed: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.Enough


@pytest.fixture
def interrupter() -> type[Interrupter]:
    """For unfinished runs with settings of the test's own."""
    return Interrupter


@pytest.fixture(scope="session")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `finished`, interrupted in the middle of training; copy it before changing it."""
    path = tmp_path_factory.mktemp("unfinished") / "run"
    settings = {"max_rounds": 5, "distillation.epochs": 2, "snapshots": "2 rounds", "checkpoint_seconds": 0}
    with pytest.raises(Interrupter.Enough):
        cpfl.run("digits", out=path, settings=settings, callback=Interrupter(12))
    return path
