"""Settings of a sweep that some of its runs leave out, or that need what is varied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cpfl
from cpfl.errors import SettingError
from cpfl.runs.folder import RunFolder
from cpfl.settings import Experiment, experiment_file
from cpfl.settings.meetings import Meetings
from cpfl.sweeps.grid import SweepGrid

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

SMALL = {"clients": 8, "max_rounds": 3, "data.train_limit": 240, "data.public_limit": 60, "model.args.hidden": 8}
SMALL |= {"distillation.epochs": 1}
MEET = {"meetings.rule": "mean", "meetings.interval": "1 rounds"}
MERGE = MEET | {"meetings.final": "merge", "data.public": "none"}
ALONE = "cohorts = 1: nobody is there to meet"


def words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def experiments(folder: Path) -> dict[int, Experiment]:
    found = [RunFolder(path.parent).experiment() for path in folder.glob("*/run.json")]
    return {one.cohorts: one for one in found}


@pytest.mark.parametrize("more", [MEET, MERGE, MEET | {"assignment.rule": "speed"}])
def test_one_cohort_of_a_sweep_has_nobody_to_meet(cpfl_command: Command, tmp_path: Path, more: dict[str, Any]) -> None:
    idle = ("distillation.epochs", "data.public_limit") if more is MERGE else ()
    settings = {key: value for key, value in SMALL.items() if key not in idle}
    answer = cpfl_command("sweep", "digits", *words(settings | more), "--cohorts", "1,2", "--out", "s").good()
    assert answer.out.count(ALONE) == 1
    made = experiments(tmp_path / "s")
    assert made[1].meetings == Meetings()
    assert (made[2].meetings.rule, made[2].meetings.interval) == ("mean", "1 rounds")
    assert [made[n].data.public for n in (1, 2)] == [more.get("data.public", "letters-grainy")] * 2
    assert [made[n].assignment.rule for n in (1, 2)] == [more.get("assignment.rule", "random")] * 2
    summaries = {n: json.loads((tmp_path / f"s/n00{n}-seed90/summary.json").read_text()) for n in (1, 2)}
    assert summaries[1]["student_accuracy"] == summaries[1]["ensemble_accuracy"]
    (tmp_path / "s/n001-seed90/summary.json").unlink()
    assert [run.path.name for run in cpfl.sweep(tmp_path / "s")] == ["n001-seed90", "n002-seed90"]
    assert json.loads((tmp_path / "s/n001-seed90/summary.json").read_text())["hours"] == summaries[1]["hours"]


def test_nothing_is_said_where_nobody_meets(cpfl_command: Command) -> None:
    answer = cpfl_command("sweep", "digits", *words(SMALL), "--cohorts", "1,2", "--out", "s").good()
    assert ALONE not in answer.out + answer.err


@pytest.mark.parametrize("more", [MEET, {"meetings.final": "merge"}, MERGE])
def test_one_cohort_alone_is_refused_meetings(more: dict[str, Any], tmp_path: Path) -> None:
    for begin in (cpfl.run, cpfl.sweep):
        settings = more | ({"cohorts": 1} if begin is cpfl.run else {})
        several = {} if begin is cpfl.run else {"cohorts": [1]}
        with pytest.raises(SettingError, match=r"meetings\.\w+ has no effect here: it needs cohorts != 1"):
            begin("digits", settings=settings, out=tmp_path / "run", device="cpu", **several)  # type: ignore[operator]
    assert not (tmp_path / "run").exists()


def test_a_run_that_leaves_out_what_is_varied_is_made_once() -> None:
    over = {"meetings.interval": ["30m", "1h"]}
    grid = SweepGrid.from_values(Experiment(), [1, 2], None, over, {"meetings.rule": "mean"})
    found = sorted((grid.experiment(name).cohorts, grid.experiment(name).meetings.interval) for name in grid.runs)
    assert found == [(1, ""), (2, "1h"), (2, "30m")]
    over = {"meetings.rule": ["none", "mean"]}
    grid = SweepGrid.from_values(Experiment(), [1, 2], None, over, {"meetings.interval": "1h"})
    assert len(grid.runs) == 3


def test_a_file_with_one_cohort_that_would_meet(tmp_path: Path) -> None:
    """The file alone is refused; a sweep over n replaces what is wrong with it."""
    file = tmp_path / "one.toml"
    file.write_text('cohorts = 1\n[meetings]\nrule = "mean"\ninterval = "1h"\n')
    with pytest.raises(SettingError, match=r"meetings.rule has no effect here"):
        experiment_file.load(file)
    base = experiment_file.varied_base(str(file), {}, {"cohorts": [1, 2]})
    grid = SweepGrid.from_values(base, [1, 2], None, {})
    assert [grid.experiment(name).meets for name in grid.runs] == [False, True]


PARTIAL = {"federation.straggler_policy": "partial"}


def test_a_setting_that_needs_what_is_varied(cpfl_command: Command, tmp_path: Path) -> None:
    sweep = ("sweep", "digits", *words(SMALL | PARTIAL), "--cohorts", "1", "--out", "s")
    cpfl_command(*sweep, "--over", "federation.deadline=10,30").good()
    found = [RunFolder(path.parent).experiment().federation for path in sorted((tmp_path / "s").glob("*/run.json"))]
    assert [(one.deadline, one.straggler_policy) for one in found] == [(10, "partial"), (30, "partial")]
    cpfl_command(*sweep, "--over", "federation.deadline=30,10").good()
    assert len(list((tmp_path / "s").glob("*/run.json"))) == 2
    cpfl_command("resume", "s").good()
    with pytest.raises(SettingError, match="needs a deadline"):
        cpfl.sweep("digits", settings=PARTIAL, over={"federation.deadline": [0]}, out=tmp_path / "t")
    with pytest.raises(SettingError, match=r"federation\.deadline = 'soon'"):  # of a run, and not of the base
        cpfl.sweep("digits", settings=PARTIAL, over={"federation.deadline": ["soon"]}, out=tmp_path / "t")
    runs = cpfl.sweep("digits", cohorts=[1], settings=SMALL | PARTIAL, over={"federation.deadline": [20]},
                      out=tmp_path / "u", device="cpu")  # fmt: skip
    assert runs[0].path.name == "n001-seed90-federation.deadline-20"
    assert not (tmp_path / "t").exists()
