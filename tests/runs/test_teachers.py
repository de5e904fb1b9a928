"""Which cohort models become teachers and what training had cost by then, on hand-made runs with known clocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from cpfl import api
from cpfl.errors import CpflError, RunFolderError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.runs.teachers import Teachers, select_teachers
from cpfl.settings import Distillation, Experiment

HOUR = 3600.0
MODEL_BYTES = 1000
SPENT = ("hours", "cpu_hours", "rounds")  # depends on the moment alone, not on who teaches


def make(
    path: Path, rounds: dict[int, list[float]], stopped: set[int], snapshots: str = "1h", interval: int = 1
) -> RunFolder:
    """A run whose cohorts closed rounds at these hours; every `interval`-th round has a snapshot."""
    experiment = Experiment(cohorts=len(rounds), clients=2 * len(rounds), snapshots=snapshots)
    cohorts = [[2 * i, 2 * i + 1] for i in rounds]
    folder = small_runs.made_by_hand(path, experiment, cohorts=cohorts, model_bytes=MODEL_BYTES)
    save(folder, folder.model("start"), -1.0, 0, 0.0)
    for cohort, hours in rounds.items():
        for number, hour in enumerate(hours, 1):
            last = number == len(hours)
            record = {"cohort": cohort, "round": number, "clock": hour * HOUR, "cpu_seconds": 1800.0 * (cohort + 1)}
            record |= {"bytes": 100, "samples": 7, "stop": "plateau" if last and cohort in stopped else ""}
            kept = bool(snapshots) and number % interval == 0
            records.append(folder.rounds(cohort), record | ({"snapshots": [number]} if kept else {}))
            if kept:
                save(folder, folder.snapshot(cohort, number), cohort + number / 100, number, hour * HOUR)
        facts = records.RunningDigest(folder.rounds(cohort)).facts
        if cohort in stopped:
            save(folder, folder.teacher(cohort), cohort + 0.99, len(hours), hours[-1] * HOUR, **facts)
        else:
            checkpoint = path / "checkpoints" / f"cohort-{cohort:04d}-round-{len(hours):06d}.safetensors"
            save(folder, checkpoint, 0.0, len(hours), hours[-1] * HOUR if hours else 0.0, **facts)
    return folder


def save(folder: RunFolder, path: Path, value: float, round: int, clock: float, **facts: Any) -> None:
    folder.save(path, {"w": torch.tensor([value])}, {"round": round, "clock": clock, **facts})


def paths(chosen: Teachers) -> list[Path]:
    """The files of the teachers: nothing here is in memory."""
    found = [source for source in chosen.sources if isinstance(source, Path)]
    assert len(found) == len(chosen.sources)
    return found


def names(folder: RunFolder, **settings: Any) -> dict[int, str]:
    """The file of every teacher, by cohort."""
    chosen = select_teachers(folder, Distillation(**settings))
    return {cohort: path.stem for cohort, path in zip(chosen.cohorts, paths(chosen), strict=True)}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Cohorts that stopped after 2 h, 4 h, 6 h and 8 h, with a round every half hour, every hour, …"""
    hours = {0: [0.5, 1.0, 1.5, 2.0], 1: [1.0, 2.0, 3.0, 4.0], 2: [3.0, 6.0], 3: [2.5, 5.0, 8.0]}
    return make(tmp_path / "run", hours, {0, 1, 2, 3})


def test_all_at_their_stops(folder: RunFolder) -> None:
    chosen = select_teachers(folder, Distillation())
    assert chosen.cohorts == [0, 1, 2, 3]
    assert paths(chosen) == [folder.teacher(i) for i in range(4)]
    assert chosen.hours == 8.0
    assert chosen.costs["rounds"] == 4 + 4 + 2 + 3
    assert chosen.costs["samples"] == 7 * 13
    assert chosen.costs["cpu_hours"] == 0.5 * (4 * 1 + 4 * 2 + 2 * 3 + 3 * 4)
    assert chosen.costs["comm_gb"] == (13 * 100 + 4 * MODEL_BYTES) / 1e9


@pytest.mark.parametrize(
    ("at", "expected", "rounds"),
    [
        ("0h", {0: "start", 1: "start", 2: "start", 3: "start"}, 0),
        ("59m", {0: "cohort-0000-round-000001", 1: "start", 2: "start", 3: "start"}, 1),
        ("1h", {0: "cohort-0000-round-000002", 1: "cohort-0001-round-000001", 2: "start", 3: "start"}, 3),
        ("3600s", {0: "cohort-0000-round-000002", 1: "cohort-0001-round-000001", 2: "start", 3: "start"}, 3),
        ("2h", {0: "cohort-0000", 1: "cohort-0001-round-000002", 2: "start", 3: "start"}, 6),
        (
            "5.5h",
            {0: "cohort-0000", 1: "cohort-0001", 2: "cohort-0002-round-000001", 3: "cohort-0003-round-000002"},
            4 + 4 + 1 + 2,
        ),
        ("8h", {i: f"cohort-{i:04d}" for i in range(4)}, 13),
        ("100h", {i: f"cohort-{i:04d}" for i in range(4)}, 13),
    ],
)
def test_at(at: str, expected: dict[int, str], rounds: int, folder: RunFolder) -> None:
    assert names(folder, at=at) == expected
    chosen = select_teachers(folder, Distillation(at=at))
    assert chosen.costs["rounds"] == rounds
    assert chosen.costs["samples"] == 7 * rounds
    assert chosen.costs["comm_gb"] == pytest.approx((100 * rounds + 4 * MODEL_BYTES) / 1e9, rel=1e-12)
    assert all(path.is_file() for path in paths(chosen))


def test_costs_count_only_rounds_before_the_given_time(folder: RunFolder) -> None:
    chosen = select_teachers(folder, Distillation(at="3h"))
    assert chosen.hours == 3.0
    assert chosen.costs["cpu_hours"] == 0.5 * (4 * 1 + 3 * 2 + 1 * 3 + 1 * 4)


def test_at_and_drop(folder: RunFolder) -> None:
    """Cohorts that had not stopped are no teachers and send no model; their training still counts."""
    chosen = select_teachers(folder, Distillation(at="4h", unfinished="drop"))
    assert chosen.cohorts == [0, 1]
    assert paths(chosen) == [folder.teacher(0), folder.teacher(1)]
    assert chosen.costs["rounds"] == 4 + 4 + 1 + 1
    assert chosen.costs["comm_gb"] == (10 * 100 + 2 * MODEL_BYTES) / 1e9
    with pytest.raises(RunFolderError, match=r"no cohort had stopped at 1\.99 h"):
        select_teachers(folder, Distillation(at="1.99h", unfinished="drop"))


@pytest.mark.parametrize(
    ("quorum", "hours", "stopped"),
    [(0.01, 2, 1), (0.25, 2, 1), (0.26, 4, 2), (0.5, 4, 2), (0.75, 6, 3), (0.76, 8, 4), (1.0, 8, 4)],
)
def test_quorum(quorum: float, hours: float, stopped: int, folder: RunFolder) -> None:
    chosen = select_teachers(folder, Distillation(quorum=quorum))
    assert chosen.hours == hours
    assert chosen.cohorts == [0, 1, 2, 3]
    assert [path for path in paths(chosen) if path.parent.name == "models" and "cohort" in path.name] == [
        folder.teacher(i) for i in range(stopped)
    ]
    dropped = select_teachers(folder, Distillation(quorum=quorum, unfinished="drop"))
    assert dropped.cohorts == list(range(stopped))
    assert dropped.hours == chosen.hours
    assert [dropped.costs[key] for key in SPENT] == [chosen.costs[key] for key in SPENT]


@pytest.mark.parametrize("cohorts", [3, 7, 10, 49])
def test_quorum_is_free_of_rounding(cohorts: int, tmp_path: Path) -> None:
    """k/n of n cohorts are k, for every k."""
    folder = make(tmp_path / "run", {i: [i + 1.0] for i in range(cohorts)}, set(range(cohorts)))
    for k in range(1, cohorts + 1):
        assert select_teachers(folder, Distillation(quorum=k / cohorts)).hours == k


def test_equal_stops(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", {0: [1.0], 1: [1.0], 2: [2.0]}, {0, 1, 2})
    assert names(folder, quorum=0.3) == {0: "cohort-0000", 1: "cohort-0001", 2: "start"}


def test_a_time_that_a_clock_just_reaches(tmp_path: Path) -> None:
    """Clocks are sums of floats: 3 h may read 10,800.00000001 s."""
    folder = make(tmp_path / "run", {0: [1.0, 3.0 + 1e-11], 1: [2.0, 5.0]}, {1})
    assert names(folder, at="3h") == {0: "cohort-0000-round-000002", 1: "cohort-0001-round-000001"}
    assert select_teachers(folder, Distillation(at="3h")).costs["rounds"] == 3


def test_sparse_snapshots(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", {0: [1.0, 2.0, 3.0, 4.0, 5.0], 1: [9.0]}, {1}, "2 rounds", interval=2)
    assert names(folder, at="5h") == {0: "cohort-0000-round-000004", 1: "start"}
    assert names(folder, at="1.5h") == {0: "start", 1: "start"}


def test_unfinished_runs(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", {0: [1.0, 2.0], 1: [0.5, 4.0], 2: []}, {0})
    with pytest.raises(RunFolderError, match=r"1 of the 3 cohorts of .* have stopped, 3 are needed"):
        select_teachers(folder, Distillation())
    with pytest.raises(RunFolderError, match=r"cohort 2 of .* does not exist yet"):
        select_teachers(folder, Distillation(at="1h"))
    with pytest.raises(RunFolderError, match=r"cohort 2 of .* does not exist yet"):
        select_teachers(folder, Distillation(quorum=0.3))
    for number in (1, 2):
        numbers = {"round": number, "clock": number * 2 * HOUR, "cpu_seconds": 0.0, "bytes": 0, "samples": 0}
        records.append(folder.rounds(2), {**numbers, "stop": "", "snapshots": [number]})
        save(folder, folder.snapshot(2, number), 2.0, number, number * 2 * HOUR)
    assert names(folder, quorum=0.3) == {
        0: "cohort-0000",
        1: "cohort-0001-round-000001",
        2: "cohort-0002-round-000001",
    }
    with pytest.raises(RunFolderError, match=r"cohort 1 of .* has trained for 4\.00 h and not stopped"):
        select_teachers(folder, Distillation(at="4.5h"))


def test_a_truncated_last_record_is_no_stop(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", {0: [1.0], 1: [1.0, 2.0]}, {0, 1})
    path = folder.rounds(1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match="1 of the 2 cohorts"):
        select_teachers(folder, Distillation())


def test_without_snapshots(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", {0: [1.0], 1: [1.0, 2.0]}, {0, 1}, snapshots="")
    with pytest.raises(RunFolderError, match=r"kept no snapshots, so cohort 1's model at 1\.00 h is gone"):
        select_teachers(folder, Distillation(at="1h"))
    assert names(folder, at="1h", unfinished="drop") == {0: "cohort-0000"}
    assert names(folder) == {0: "cohort-0000", 1: "cohort-0001"}


@pytest.mark.parametrize(("key", "value"), [("quorum", 0.5), ("at", "1s")])
def test_a_run_that_could_never_be_distilled_is_refused_before_it_trains(key: str, value: Any, tmp_path: Path) -> None:
    """Teachers of unfinished cohorts are their latest snapshots: without snapshots the training would be useless."""
    settings = small_runs.SETTINGS | {"max_rounds": 2, "snapshots": "", f"distillation.{key}": value}
    with pytest.raises(CpflError, match="snapshots"):
        api.run("digits", settings=settings, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    with_them = api.run("digits", settings=settings | {"snapshots": "1s"}, out=tmp_path / "with", device="cpu")
    assert with_them.summary["teachers"] == [0, 1, 2]
