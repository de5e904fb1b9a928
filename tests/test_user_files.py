"""Classes of a user: the files of the docs pages, and the program run with the TOML that names them.

Client and server optimizers, which every engine must agree on, are run in tests/federation/test_optimizers.py.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conftest import Answer, Command
from tests.pages import PAGES, files, find, noted

import cpfl
from cpfl.federation.selection.base import round_seconds
from cpfl.runs.folder import RunFolder, load_state
from cpfl.runs.reload import reload_task
from cpfl.task.loading import given_arrays
from cpfl.task.task import Task

KINDS = {  # every kind, and the page that has an example of it
    ("federation", "client"): "custom-optimizer.md",
    ("federation", "server"): "custom-optimizer.md",
    ("federation", "selection"): "custom-selection.md",
    ("assignment", "rule"): "cohort-assignment.md",
    ("model", "name"): "custom-data-and-model.md",
}
LESS = ("--set", "distillation.epochs=20")
Shown = Callable[[str], list[Answer]]


@pytest.mark.parametrize(("section", "key"), KINDS)
def test_every_kind_has_a_short_file_and_the_toml_that_names_it(section: str, key: str) -> None:
    shown = files(find(KINDS[section, key]))
    trees = [tomllib.loads(text) for name, text in shown.items() if name.endswith(".toml")]
    (named,) = [tree[section][key] for tree in trees if ":" in tree.get(section, {}).get(key, "")]
    module, _, kind = named.partition(":")
    assert f"class {kind}(" in shown[f"{module}.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_example_is_longer_than_twenty_lines(page: Path) -> None:
    assert {name: n for name, text in files(page).items() if (n := len(text.splitlines())) > 20} == {}


@pytest.fixture
def shown(cpfl_process: Command, tmp_path: Path) -> Shown:
    """Writes a page's files and runs its commands, each as a process of its own; only the student learns less."""

    def run(page: str) -> list[Answer]:
        for name, text in files(find(page)).items():
            (tmp_path / name).write_text(text)
        return [cpfl_process(*words, *LESS).good() for words in noted(page, "tests/test_user_files.py")]

    return run


def task(path: Path) -> Task:
    return reload_task(RunFolder.open(path), None, None, given_arrays(None, None, None), lambda text: None)


def seconds_of(task: Task) -> NDArray[np.float64]:
    """How long a whole round takes each client."""
    sizes = task.data.clients.training_sizes
    return round_seconds(task.experiment.federation, task.fleet, sizes, task.model_bytes)


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("importable")
def test_a_selection(shown: Shown, tmp_path: Path) -> None:
    """Everybody takes part equally often, but for those who are slow."""
    shown("custom-selection.md")
    run, ours = cpfl.load_run(tmp_path / "runs" / "turns"), task(tmp_path / "runs" / "turns")
    slow = 0
    for cohort, clients in enumerate(ours.cohorts):
        turns = Counter(client for r in run.rounds if r["cohort"] == cohort for client in r["participants"])
        seconds = seconds_of(ours)
        quick = [client for client in clients if seconds[client] <= 3]
        slow += len(clients) - len(quick)
        assert set(turns) == set(quick)
        assert max(turns.values()) - min(turns.values()) <= 1
    assert slow > 0


@pytest.mark.usefixtures("importable")
def test_a_cohort_assignment(shown: Shown, tmp_path: Path) -> None:
    """The last cohort is the slowest quarter; the assignment has seen how long every client's round takes."""
    reported, _ = shown("cohort-assignment.md")
    ours = task(tmp_path / "runs" / "apart")
    seconds = dict(enumerate(seconds_of(ours)))
    limit = np.quantile(list(seconds.values()), 0.75)
    assert sorted(ours.cohorts[3]) == sorted(client for client, s in seconds.items() if s >= limit)
    about = json.loads((tmp_path / "runs" / "apart" / "run.json").read_text())
    assert "round takes" in about["assignment_reveals"]
    assert "round takes" in " ".join(reported.out.split())


def test_a_model(shown: Shown, tmp_path: Path) -> None:
    shown("custom-data-and-model.md")
    run = cpfl.load_run(tmp_path / "runs" / "net")
    assert load_state(run.path / "models" / "global.safetensors")["features.0.weight"].shape == (32, 1, 3, 3)
    assert run.summary["student_accuracy"] > 50  # of ten digits
