"""A large population's columns lie in a memory-mapped file, and nothing else changes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpfl
from cpfl.cohorts.base import Members
from cpfl.data.given import Given
from cpfl.runs.files import write_json
from cpfl.settings import experiment_file
from cpfl.task import population
from cpfl.task.task import Task, build_task

SETTINGS: dict[str, Any] = {"max_rounds": 3, "distillation.epochs": 1, "data.public_limit": 100}


def task() -> Task:
    return build_task(experiment_file.with_settings(experiment_file.load("digits"), SETTINGS), [], Given())


def columns_of(found: Task) -> population.Columns:
    return population.Population(found.data.clients, found.fleet, found.cohorts).columns()


def mappings(path: Path) -> list[tuple[int, int]]:
    """Where this process has files of a folder mapped, from which address to which."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in (line[0].split("-") for line in lines)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every population counts as a large one; the folder where its file is made."""
    monkeypatch.setattr(population, "LARGE", 0)
    monkeypatch.setenv("CPFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_column_is_a_part_of_the_mapped_file(large: Path) -> None:
    found = task()
    file = mappings(large)
    assert file, "a file is mapped"
    for name, column in columns_of(found).items():
        at = column.__array_interface__["data"][0]
        assert any(begin <= at and at + column.nbytes <= end for begin, end in file), name
        assert not column.flags.writeable
    assert list(large.iterdir()) == [], "it has no name that could stay behind"


def test_the_columns_are_those_of_memory(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = task()
    monkeypatch.setattr(population, "LARGE", 2**60)
    plain = task()
    for name, column in columns_of(plain).items():
        other = columns_of(mapped)[name]
        assert other.dtype == column.dtype
        assert (other == column).all()
    assert mapped.fingerprint() == plain.fingerprint()
    assert (mapped.label_counts == plain.label_counts).all()
    again = pickle.loads(pickle.dumps(columns_of(mapped)))  # what travels to other machines
    assert all((again[name] == column).all() for name, column in columns_of(plain).items())


@pytest.mark.parametrize("engine", ["lanes", "workers"])
def test_runs_are_equal(large: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str) -> None:
    cpfl.run("digits", out=tmp_path / "mapped", settings=SETTINGS, engine=engine, workers=2 * (engine == "workers"))
    monkeypatch.setattr(population, "LARGE", 2**60)
    cpfl.run("digits", out=tmp_path / "plain", settings=SETTINGS, engine=engine, workers=2 * (engine == "workers"))
    kept = [path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain" / "rounds").iterdir()]
    for path in [*kept, Path("clients.json"), Path("models/global.safetensors")]:
        assert (tmp_path / "mapped" / path).read_bytes() == (tmp_path / "plain" / path).read_bytes(), path
    abouts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("mapped", "plain")]
    moment = {"created": "", "checksum": ""}  # the checksum is of the moment too
    assert abouts[0] | moment == abouts[1] | moment


def test_without_space_on_disk_it_stays_in_memory(large: Path) -> None:
    large.write_text("a file where a folder is wanted")
    assert task().data.clients.training_sizes.flags.writeable


def test_members_read_like_a_list(tmp_path: Path) -> None:
    numbers = [2, 3, 7, 11]
    members = Members(numbers)
    assert (members, list(members), len(members), members[1], members[-1]) == (numbers, numbers, 4, 3, 11)
    assert [k for k in range(13) if k in members] == numbers
    assert members.holds([11, 2])
    assert not any(members.holds(wrong) for wrong in ([2, 4], [12], [-1], [10**30]))
    assert repr(members) == repr(numbers)
    assert members[1:3] == [3, 7]
    assert members != [2, 3, 7]
    assert type(members[0]) is int
    assert type(next(iter(members))) is int
    assert (np.arange(20)[members] == numbers).all()
    assert np.shares_memory(np.asarray(members), np.asarray(Members(members)))
    write_json(tmp_path / "x.json", {"cohorts": [members, Members([5])], "name": "å"})
    assert (tmp_path / "x.json").read_text() == json.dumps({"cohorts": [numbers, [5]], "name": "å"}, indent=2) + "\n"


def test_labels_are_counted_for_some_clients() -> None:
    data = task().data
    some = np.array([1, 4, 30])
    assert (data.label_counts(some) == data.counts[some]).all()
    held = data.clients[4]
    assert data.train.y is not None
    assert (data.counts[4] == np.bincount(data.train.y[held.training], minlength=data.classes)).all()
