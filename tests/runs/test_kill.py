"""kill -9 at any moment, and resume: results equal those of an uninterrupted run."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small_runs
import suspending
from forked import Forked
from small_runs import Unbroken

from cpfl import api
from cpfl.errors import RunFolderError
from cpfl.report import tables
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import Teachers, select_teachers
from cpfl.settings import Distillation

BY_TIME = {"snapshots": "10s"}  # by virtual time
LONGER = {
    "max_rounds": 60,
    "snapshots": "20s",
    "stopping.patience": 60,
    "distillation.epochs": 150,
    "distillation.batch_size": 8,
}


# Moments at which a process is killed.


def early(path: Path, dice: random.Random) -> Callable[[], bool]:
    """Start-up: between the start of the interpreter and the first record."""
    until = time.monotonic() + dice.uniform(0.1, 2.5)
    return lambda: time.monotonic() > until or any(path.glob("rounds/*"))


def created(path: Path, dice: random.Random) -> Callable[[], bool]:
    """The run folder was just created."""
    return path.exists


def training(path: Path, dice: random.Random) -> Callable[[], bool]:
    """Some rounds further than it was."""
    wanted = dice.randint(1, 40)
    before: list[int] = []

    def reached() -> bool:
        now = len(lines(path, "rounds/*.jsonl"))
        if not before or now < before[0]:  # a resume first drops records that no checkpoint confirms
            before[:] = [now]
        return now >= before[0] + wanted

    return reached


def stopping(path: Path, dice: random.Random) -> Callable[[], bool]:
    """A cohort just stopped."""
    before = set(path.glob("models/cohort-*"))
    return lambda: set(path.glob("models/cohort-*")) > before


def distilling(path: Path, dice: random.Random) -> Callable[[], bool]:
    """Some epochs into the distillation."""
    wanted = dice.randint(1, 100)
    return lambda: len(lines(path, "epochs.jsonl")) >= wanted


def ending(path: Path, dice: random.Random) -> Callable[[], bool]:
    """The global model is written, the summary perhaps not."""
    return lambda: (path / "models" / "global.safetensors").exists()


def lines(path: Path, pattern: str) -> list[bytes]:
    return [line for file in path.glob(pattern) for line in file.read_bytes().splitlines()]


def killed_at(process: subprocess.Popen[str] | Forked, reached: Callable[[], bool]) -> bool:
    """Kill the process at this moment; False if it ended before."""
    killed = suspending.killed_when(process, reached, 0.005)  # short: the last moments are
    _, error = process.communicate()
    assert process.returncode == (-signal.SIGKILL if killed else 0), error
    return killed


@pytest.mark.parametrize(
    ("checkpoint_seconds", "moments"),
    [
        (0, [early, created, training, stopping, distilling, ending]),
        (0.03, [created, training, training, distilling]),
    ],
)
def test_killed_again_and_again(
    checkpoint_seconds: float,
    moments: list[Callable[[Path, random.Random], Callable[[], bool]]],
    tmp_path: Path,
    unbroken: Unbroken,
) -> None:
    dice = random.Random(f"kill {checkpoint_seconds}")
    path = tmp_path / "run"
    settings = LONGER | {"checkpoint_seconds": checkpoint_seconds}
    kills = 0
    for moment in moments:
        # Without a run.json a folder is no run, and the same command starts it.
        begun = (path / "run.json").exists()
        words = ["resume", str(path)] if begun else small_runs.run_words(path, settings)
        reached = moment(path, dice)  # relative to the folder as it is now
        start = small_runs.start_cold if moment is early else partial(small_runs.start, driver=("often", "0.02"))
        kills += killed_at(start(*words), reached)
    ended = small_runs.cpfl("resume", path)
    assert ended.returncode == 0, ended.stderr
    assert small_runs.differing(path, unbroken(**settings)) == []
    assert kills >= len(moments) - 1  # the last moments are short: one may be missed


@pytest.mark.parametrize(("mode", "operations"), [("kill", (9, 77, 175)), ("torn", (1, 4, 20))])
def test_killed_at_an_operation(mode: str, operations: tuple[int, ...], tmp_path: Path, unbroken: Unbroken) -> None:
    """A process that kills itself right before, or in the middle of, its k-th write."""

    def die(k: int) -> subprocess.CompletedProcess[str]:
        return small_runs.cpfl(*small_runs.run_words(tmp_path / str(k), {}), driver=(mode, str(k)))

    with ThreadPoolExecutor(2) as pool:
        deaths = dict(zip(operations, pool.map(die, operations), strict=True))
    wrong = {}
    for k, dead in deaths.items():
        assert dead.returncode == -signal.SIGKILL, dead.stderr
        wrong[k] = after(tmp_path / str(k), unbroken(), {})
    assert not any(wrong.values()), wrong


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a kill leaves at every operation on a file: the folder right before each of them."""
    folder = tmp_path_factory.mktemp("states")
    out = folder / "run"
    done = small_runs.cpfl(*small_runs.run_words(out, BY_TIME), driver=("copy", str(folder / "before")))
    assert done.returncode == 0, done.stderr
    different = {contents(state): state for state in sorted((folder / "before").iterdir())}
    assert len(different) > 60
    return list(different.values())


def contents(folder: Path) -> str:
    """Equal for folders that hold the same."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(repr((path.relative_to(folder), path.read_bytes() if path.is_file() else None)).encode())
    return digest.hexdigest()


def test_killed_at_every_operation(states: list[Path], tmp_path: Path, unbroken: Unbroken) -> None:
    wrong = {}
    for state in states:
        path = tmp_path / state.name
        shutil.copytree(state, path)
        found = after(path, unbroken(**BY_TIME), BY_TIME)
        if found:
            wrong[state.name] = found
        shutil.rmtree(path)
    assert wrong == {}


@pytest.mark.parametrize("at", ["10s", "20s", "50s", "200s"])
def test_teachers_can_be_selected_at_every_operation(at: str, states: list[Path], unbroken: Unbroken) -> None:
    """A reader at any moment finds the teachers that the finished run has for that time, or is asked to wait."""
    settings = Distillation(at=at)
    final = select_teachers(RunFolder.open(unbroken(**BY_TIME)), settings)
    answers, refusals = 0, dict[str, str]()
    for state in states:
        if not (state / "run.json").exists():
            continue
        folder = RunFolder.open(state)
        assert len(tables.overview(state)) == 1
        try:
            found = select_teachers(folder, settings)
        except RunFolderError as error:
            refusals[state.name] = str(error)
            continue
        answers += 1
        assert names(found) == names(final), state.name
        for path in found.sources:
            assert isinstance(path, Path)
            files.load_tensors(path)
        assert (found.hours, found.costs) == (final.hours, final.costs)
    assert {name: text for name, text in refusals.items() if "does not exist yet" not in text} == {}
    assert answers > 1


def names(chosen: Teachers) -> list[str]:
    return [source.name for source in chosen.sources if isinstance(source, Path)]


def after(path: Path, whole: Path, settings: dict[str, Any]) -> list[str]:
    """What is wrong with a folder after a user has continued: resume, or the same command if there is no run.json."""
    try:
        if (path / "run.json").exists():
            api.resume(path, device="cpu")
        else:
            api.run("digits", settings=small_runs.settings_with(settings), out=path, device="cpu")
        records.read(path / "log.jsonl")
    except RunFolderError as error:
        return [str(error)]
    return small_runs.differing(path, whole)
