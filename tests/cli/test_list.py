"""cpfl list: finished runs, open runs, no runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpfl.runs.folder import SCHEMA

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command


@pytest.fixture
def runs(finished: Path, unfinished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "runs" / "done")
    shutil.copytree(unfinished, tmp_path / "runs" / "open")
    return tmp_path / "runs"


def test_list(cpfl_command: Command, runs: Path) -> None:
    rows = {row["path"]: row for row in cpfl_command("list", "--json").good().json}
    assert set(rows) == {"runs/done", "runs/open"}
    summary = json.loads((runs / "done" / "summary.json").read_text())
    assert rows["runs/done"]["state"] == "finished"
    assert rows["runs/done"]["student_accuracy"] == summary["student_accuracy"]
    assert rows["runs/done"]["hours"] == pytest.approx(summary["hours"])
    assert rows["runs/open"]["student_accuracy"] is None
    assert rows["runs/open"]["rounds"] == 12
    assert "of 4 cohorts stopped" in rows["runs/open"]["state"]
    out = cpfl_command("list", "runs").good().out
    for word in ("runs/done", "runs/open", "finished", f"{summary['student_accuracy']:.2f}"):
        assert word in out


def test_a_sweep_is_found_one_level_deeper(cpfl_command: Command, runs: Path) -> None:
    (runs / "sweep").mkdir()
    (runs / "done").rename(runs / "sweep" / "n004-seed90")
    assert {row["path"] for row in cpfl_command("list", "--json").good().json} == {
        "runs/open",
        "runs/sweep/n004-seed90",
    }


def test_nothing_there(cpfl_command: Command, tmp_path: Path) -> None:
    missing = cpfl_command("list")
    assert missing.code == 2
    assert missing.err == "cpfl: there is no folder runs\n"
    (tmp_path / "runs").mkdir()
    assert "there are no runs in runs" in cpfl_command("list").good().out
    assert cpfl_command("list", "--json").good().json == []


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 99}', f'{{"schema": {SCHEMA}}}'])
def test_one_damaged_run_does_not_hide_the_others(cpfl_command: Command, runs: Path, damage: str) -> None:
    (runs / "open" / "run.json").write_text(damage)
    answer = cpfl_command("list")
    assert "runs/done" in answer.out
    assert "runs/open" in answer.out + answer.err


def test_later_distillations_are_listed(cpfl_command: Command, runs: Path) -> None:
    first = cpfl_command("distill", "runs/done", "--weights", "uniform", "--json").good().json
    cpfl_command("distill", "runs/done", "--quorum", "0.5", "--name", "half").good()
    rows = {row["path"]: row for row in cpfl_command("list", "--json").good().json}
    assert rows["runs/open"]["distillations"] == []
    found = {row["path"]: row for row in rows["runs/done"]["distillations"]}
    assert set(found) == {"runs/done/distillations/half", "runs/done/distillations/weights-uniform"}
    again = found["runs/done/distillations/weights-uniform"]
    assert again["student_accuracy"] == first["student_accuracy"]
    assert again["hours"] == first["hours"]
    out = cpfl_command("list").good().out
    assert f"{first['student_accuracy']:.2f}" in out
    assert out.count("distilled again") == 2
    (runs / "done" / "distillations" / "half" / "summary.json").write_text("{")
    assert "damaged" in cpfl_command("list").good().out
