"""kill -9 in the middle of a sweep, and the same command again: the result is that of an uninterrupted sweep."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_runs
from forked import Forked
from tests.hold import PATH, Hold

import cpfl
from cpfl.errors import RunFolderError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

ALPHAS = [0.1, 1, 10]
NAMES = [f"n002-seed90-data.alpha-{alpha}" for alpha in ALPHAS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the file is that holds runs."""
    return tmp_path_factory.mktemp("hold")


def settings(folder: Path) -> dict[str, Any]:
    hold = Hold(folder, 0)
    hold.end()
    chosen = hold.settings(small_runs.SETTINGS | {"max_rounds": 6, "stopping.patience": 6})
    return {key: value for key, value in chosen.items() if key != "cohorts"}


def start(out: Path, folder: Path, jobs: int, driver: tuple[str, ...] = ()) -> Forked:
    """The sweep as a process."""
    words = ["sweep", "digits", "--cohorts", "2", "--over", f"data.alpha={','.join(map(str, ALPHAS))}"]
    words += ["--device", "cpu", "--engine", "reference", "--jobs", str(jobs), "--out", str(out)]
    words += [f"--set={key}={value}" for key, value in settings(folder).items()]
    program = ("dying:main", ["dying.py", *driver, *words]) if driver else ("cpfl.cli:main", ["cpfl", *words])
    return Forked(*program, small_runs.environment() | PATH)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, folder: Path, one_thread: None) -> Path:
    """The sweep, never interrupted."""
    out, over = tmp_path_factory.mktemp("whole") / "s", {"data.alpha": ALPHAS}
    cpfl.sweep(
        "digits",
        cohorts=[2],
        over=over,
        settings=settings(folder),
        out=out,
        device="cpu",
        engine="reference",
        workers=1,
    )
    return out


def check_resumed(out: Path, whole: Path) -> None:
    """Resume the sweep here: finished runs are not touched, the others become what they would have been."""
    finished = [path.parent for path in out.glob("*/summary.json")]
    assert len(finished) < len(NAMES)
    untouched = {file: file.stat().st_mtime_ns for path in finished for file in path.rglob("*")}
    assert len(cpfl.sweep(out, device="cpu", workers=1)) == len(NAMES)
    assert {file: file.stat().st_mtime_ns for file in untouched} == untouched
    for name in NAMES:
        assert small_runs.differing(out / name, whole / name) == []
        assert records.read(out / name / "log.jsonl")[-1]["event"] == "finished"
    assert list(out.rglob(".*.part")) == []


def test_killed_again_and_again(tmp_path: Path, folder: Path, whole: Path) -> None:
    out = tmp_path / "s"
    operations = ["sweep.json:2", f"{NAMES[0]}/.run.json:2", f"{NAMES[0]}/rounds/:9", f"{NAMES[1]}/.experiment.toml:2"]
    for operation in [*operations, f"{NAMES[1]}/models/.global:2", f"{NAMES[2]}/checkpoints/:5"]:
        process = start(out, folder, 1, ("at", operation))
        _, error = process.communicate()
        assert process.returncode == -signal.SIGKILL, (operation, error)
    assert sorted(path.parent.name for path in out.glob("*/summary.json")) == sorted(NAMES[:2])
    check_resumed(out, whole)


def wait_until(process: Forked, reached: Callable[[], bool]) -> None:
    while not reached():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


def begun(out: Path) -> int:
    """The number of runs that have recorded a round."""
    return len({path.parents[1] for path in out.glob("*/rounds/*.jsonl") if path.stat().st_size})


def test_killed_with_all_its_runs(tmp_path: Path, folder: Path, whole: Path) -> None:
    """Processes of a killed sweep end by themselves and release their locks."""
    out, process = tmp_path / "s", start(tmp_path / "s", folder, 2)
    hold = Hold(folder, 3)  # no run ends before the kill
    try:
        wait_until(process, lambda: begun(out) == 2)
        process.kill()
        process.communicate()
        while not all(free(path.parent) for path in out.glob("*/run.json")):
            time.sleep(0.02)
    finally:
        hold.end()
        process.kill()
    assert not list(out.glob("*/summary.json"))
    check_resumed(out, whole)


def free(path: Path) -> bool:
    """Whether no process trains into this folder."""
    folder = RunFolder(path)
    try:
        folder.lock()
    except RunFolderError:
        return False
    folder.unlock()
    return True


def test_a_killed_worker_fails_its_runs_only(tmp_path: Path, folder: Path, whole: Path) -> None:
    """A process is killed, as by a system that is out of memory: the runs that had not begun are made by new ones."""
    out, process = tmp_path / "s", start(tmp_path / "s", folder, 2)
    hold = Hold(folder, 3)
    try:
        wait_until(process, lambda: begun(out) == 2)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        wait_until(process, lambda: begun(out) == 3)
    except BaseException:
        process.kill()
        raise
    finally:
        hold.end()
    _, error = process.communicate()
    assert process.returncode == 1, error
    failed = [line for line in error.splitlines() if "was killed during this run" in line]
    assert 1 <= len(failed) <= 2
    assert "Traceback" not in error
    assert len(list(out.glob("*/summary.json"))) == len(NAMES) - len(failed)
    check_resumed(out, whole)


def workers(pid: int) -> list[int]:
    """The processes of a sweep that make its runs."""
    children = [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
