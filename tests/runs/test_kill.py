"""kill -9 of processes that train, and resume: results equal those of an uninterrupted run.

test_every_operation.py has every operation on a file, without training and without processes.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import small_runs
import suspending
import untrained
from small_runs import Unbroken

from cpfl import api
from cpfl.errors import RunFolderError
from cpfl.reports import tables
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import Teachers, select_teachers
from cpfl.settings import Distillation
from cpfl.task.task import Task

BY_TIME = {"snapshots": "10s"}  # by virtual time
LONGER = {"max_rounds": 12, "snapshots": "20s", "stopping.patience": 12, "distillation.epochs": 10}
# Parts of paths, and at which operation on such a file a process is killed.
MOMENTS = {
    "the folder is being made": "run.json:1",
    "the run has begun": "rounds/:2",
    "some rounds later": "checkpoints/:5",
    "a cohort stops": "models/.cohort-:2",
    "the distillation": "epochs.jsonl:7",
    "the student is being saved": "models/.global:1",
    "nothing is left but the summary": "summary.json:2",
}


@pytest.mark.parametrize("checkpoint_seconds", [0, 0.005])
def test_killed_again_and_again(checkpoint_seconds: float, tmp_path: Path, unbroken: Unbroken) -> None:
    path, settings = tmp_path / "run", LONGER | {"checkpoint_seconds": checkpoint_seconds}
    for moment, operation in MOMENTS.items():
        # Without a run.json a folder is no run, and the same command starts it.
        begun = (path / "run.json").exists()
        words = ["resume", str(path)] if begun else small_runs.run_words(path, settings)
        dead = small_runs.cpfl(*words, driver=("at", operation))
        assert dead.returncode == -signal.SIGKILL, (moment, dead.stderr)
        assert not (path / "summary.json").exists()
    ended = small_runs.cpfl("resume", path)
    assert ended.returncode == 0, ended.stderr
    assert small_runs.differing(path, unbroken(**settings)) == []


@pytest.mark.parametrize("reached", [lambda path: path.exists(), lambda path: any(path.glob("checkpoints/cohort-*"))])
def test_killed_by_another_process(reached: Callable[[Path], bool], tmp_path: Path, unbroken: Unbroken) -> None:
    """At whatever instruction it is: here the kill comes from outside."""
    path, settings = tmp_path / "run", LONGER | {"max_rounds": 100, "stopping.patience": 100}
    process = small_runs.start(*small_runs.run_words(path, settings))
    killed = suspending.killed_when(process, lambda: reached(path), 0.005)
    _, error = process.communicate()
    assert killed, error
    assert process.returncode == -signal.SIGKILL
    assert after(path, unbroken(**settings), settings) == []


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
def task() -> Task:
    return untrained.task(BY_TIME)


@pytest.fixture(scope="module")
def states(task: Task, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a kill leaves at every operation on a file."""
    found = untrained.states(task, tmp_path_factory.mktemp("states"))
    assert len(found) > 60
    return found


@pytest.mark.parametrize("at", ["10s", "20s", "50s", "200s"])
def test_teachers_can_be_selected_at_every_operation(at: str, states: list[Path]) -> None:
    """A reader at any moment finds the teachers that the finished run has for that time, or is asked to wait."""
    settings = Distillation(at=at)
    final = select_teachers(RunFolder.open(states[0].parents[1] / "run"), settings)
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
            api.resume(path, device="cpu", workers=1)
        else:
            api.run("digits", settings=small_runs.settings_with(settings), out=path, device="cpu", workers=1)
        records.read(path / "log.jsonl")
    except RunFolderError as error:
        return [str(error)]
    return small_runs.differing(path, whole)
