"""kill -9 in the middle of a sweep, and the same command again: the result is that of an uninterrupted sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import small_runs
import suspending

import cpfl
from cpfl.errors import RunFolderError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

SETTINGS = small_runs.SETTINGS | {"max_rounds": 60, "stopping.patience": 60, "checkpoint_seconds": 0.05}
NAMES = [
    "n002-seed90-data.alpha-0.1",
    "n003-seed90-data.alpha-0.1",
    "n002-seed90-data.alpha-1",
    "n003-seed90-data.alpha-1",
]


def words(out: Path, jobs: int) -> list[str]:
    found = [
        "sweep",
        "digits",
        "--cohorts",
        "2,3",
        "--over",
        "data.alpha=0.1,1",
        "--device",
        "cpu",
        "--engine",
        "reference",
    ]
    for key, value in SETTINGS.items():
        if key != "cohorts":
            found += ["--set", f"{key}={value}"]
    return [*found, "--jobs", str(jobs), "--out", str(out)]


def lines(path: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in path.glob("*/rounds/*.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The sweep, never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "s"
    over = {"data.alpha": [0.1, 1]}
    settings = {key: value for key, value in SETTINGS.items() if key != "cohorts"}
    cpfl.sweep("digits", cohorts=[2, 3], over=over, settings=settings, out=out, device="cpu", engine="reference")
    return out


@pytest.mark.parametrize(("jobs", "moments"), [(1, (30, 200, 330)), (2, (60, 330))])
def test_killed_again_and_again(jobs: int, moments: tuple[int, ...], tmp_path: Path, whole: Path) -> None:
    out, kills = tmp_path / "s", 0
    for target in moments:  # rounds of all runs together; there are 600
        process = small_runs.start(*words(out, jobs))
        kills += suspending.killed_when(process, lambda: lines(out) >= target)  # noqa: B023  (called at once)
        process.communicate()
        wait_for_children(out)
    assert kills == len(moments)
    assert not all((out / name / "summary.json").exists() for name in NAMES)
    untouched = {
        file: file.stat().st_mtime_ns
        for name in NAMES
        if (out / name / "summary.json").exists()
        for file in (out / name).rglob("*")
    }
    last = small_runs.cpfl("resume", out, "--jobs", str(jobs), "--json")
    assert last.returncode == 0, last.stderr
    assert len(json.loads(last.stdout)["runs"]) == 4
    assert {file: file.stat().st_mtime_ns for file in untouched} == untouched
    for name in NAMES:
        assert small_runs.differing(out / name, whole / name) == []


def wait_for_children(out: Path) -> None:
    """Processes of a killed sweep end by themselves and release their locks."""
    until = time.monotonic() + 120
    while not all(free(path.parent) for path in out.glob("*/run.json")):
        assert time.monotonic() < until
        time.sleep(0.05)


def free(path: Path) -> bool:
    """Whether no process trains into this folder."""
    folder = RunFolder(path)
    try:
        folder.lock()
    except RunFolderError:
        return False
    folder.unlock()
    return True


def test_a_killed_worker_fails_its_runs_only(tmp_path: Path, whole: Path) -> None:
    """A process is killed, as by a system that is out of memory."""
    out = tmp_path / "s"
    process = small_runs.start(*words(out, 2))
    while lines(out) < 30:
        time.sleep(suspending.STEP)
        suspended = suspending.suspend(process.pid)
        assert process.poll() is None, process.communicate()[1]
        if lines(out) < 30:
            suspending.wake(suspended)
    children = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    suspending.wake(suspended)
    _, error = process.communicate(timeout=200)
    assert process.returncode == 1, error
    failed = [line for line in error.splitlines() if "was killed during this run" in line]
    assert 1 <= len(failed) <= 2
    assert "Traceback" not in error
    assert len(list(out.glob("*/summary.json"))) == 4 - len(failed)
    again = small_runs.cpfl(*words(out, 2))
    assert again.returncode == 0, again.stderr
    for name in NAMES:
        assert small_runs.differing(out / name, whole / name) == []
        assert records.read(out / name / "log.jsonl")[-1]["event"] == "finished"
