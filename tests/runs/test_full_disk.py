"""A full disk ends a run with one sentence; the run can be resumed once there is space."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
from small_runs import Unbroken

from cpfl import api
from cpfl.errors import RunFolderError
from cpfl.runs import records

LARGE = {"model.args.hidden": 64, "snapshots": "1 rounds", "checkpoint_seconds": 0}


def mount(*words: str | Path) -> bool:
    return subprocess.run(["mount", *map(str, words)], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of a chosen size, which can be made larger."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = []

    def make(size: str) -> Path:
        option = f"remount,size={size}" if mounted else f"size={size}"
        if not mount("-t", "tmpfs", "-o", option, "tmpfs", path):
            pytest.skip("mounting a tmpfs is not permitted here")
        mounted.append(path)
        return path

    yield make
    if mounted:
        subprocess.run(["umount", path], check=True)


def test_full_while_training(disk: Callable[[str], Path], unbroken: Unbroken) -> None:
    path = disk("300k") / "run"
    stopped = small_runs.cpfl(*small_runs.run_words(path, LARGE))
    assert stopped.returncode == 2, stopped.stderr
    sentence = small_runs.one_sentence(stopped.stderr)
    assert "disk is full" in sentence
    assert "cpfl resume" in sentence
    assert not (path / "summary.json").exists()
    assert records.read(path / "rounds" / "cohort-0000.jsonl")  # it had started, and its records can be read

    with pytest.raises(RunFolderError, match="disk is full"):  # still
        api.resume(path, device="cpu")

    disk("8m")
    api.resume(path, device="cpu", workers=1)
    assert small_runs.differing(path, unbroken(**LARGE)) == []


def test_full_from_the_start(disk: Callable[[str], Path], unbroken: Unbroken) -> None:
    """No space even for the first files: the same command works once there is."""
    path = disk("4k") / "run"
    stopped = small_runs.cpfl(*small_runs.run_words(path, {}))
    assert stopped.returncode == 2, stopped.stderr
    assert "disk is full" in small_runs.one_sentence(stopped.stderr)
    disk("8m")
    continue_run(path, {})
    assert small_runs.differing(path, unbroken()) == []


@pytest.mark.parametrize(("limit", "full"), [(500, "experiment.toml"), (5000, "cohort-000")])
def test_no_file_may_grow(limit: int, full: str, tmp_path: Path, unbroken: Unbroken) -> None:
    """The same where no disk can be mounted: files may not grow beyond a limit, which may cut a record in two."""
    path = tmp_path / "run"
    settings = {"model.args.hidden": 1, "max_rounds": 30, "stopping.patience": 30, "distillation.epochs": 2}
    stopped = small_runs.cpfl(*small_runs.run_words(path, settings), driver=("limit", str(limit)))
    assert stopped.returncode == 2, stopped.stderr
    sentence = small_runs.one_sentence(stopped.stderr)
    assert "disk is full" in sentence
    assert full in sentence
    if (path / "run.json").exists():  # the line that did not fit is incomplete
        contents = [file.read_bytes() for file in path.glob("rounds/*")]
        assert sum(not content.endswith(b"\n") for content in contents) == 1
    continue_run(path, settings)
    assert small_runs.differing(path, unbroken(**settings)) == []


def continue_run(path: Path, settings: dict[str, Any]) -> None:
    """What a user does: resume, or run the same command again if there is no run.json yet."""
    if (path / "run.json").exists():
        api.resume(path, device="cpu")
    else:
        api.run("digits", settings=small_runs.settings_with(settings), out=path, device="cpu")
