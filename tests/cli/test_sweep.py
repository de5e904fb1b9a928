"""cpfl sweep: what n costs and gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")


WORDS = ("sweep", "digits", *QUICK)


def written(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.glob("*/rounds/*.jsonl")}


def test_table_and_picture(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command(*WORDS, "--cohorts", "1,2,4", "--out", "s").good()
    runs = sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir())
    assert runs == ["n001-seed90", "n002-seed90", "n004-seed90"]
    summaries = [json.loads((tmp_path / "s" / run / "summary.json").read_text()) for run in runs]
    table = answer.out[answer.out.index("What n costs and gains") :]
    for summary in summaries:
        row = next(
            line for line in table.splitlines() if line.replace("│", " ").split()[:1] == [str(summary["cohorts"])]
        )
        assert f"{summary['student_accuracy']:.1f}" in row
        assert f"{summary['cpu_hours']:.1f}" in row
        assert f"{summaries[0]['hours'] / summary['hours']:.2f}×" in row
    with Image.open(tmp_path / "s" / "trade-off.png") as picture:
        assert picture.width > 500
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10  # not an empty page


def test_several_seeds_are_readable_in_a_pipe(cpfl_command: Command, tmp_path: Path) -> None:
    """No terminal, so no width: nothing may be cut off."""
    answer = cpfl_command(*WORDS, "--cohorts", "1,2", "--seeds", "90,91", "--out", "s").good()
    assert len(list((tmp_path / "s").glob("*/summary.json"))) == 4
    table = answer.out[answer.out.index("What n costs and gains") :]
    assert "…" not in table
    for word in ("teachers", "ensemble", "student", "hours", "traffic", "faster", "saved", "±", "over 2 seeds"):
        assert word in table
    means = [
        sum(json.loads((tmp_path / "s" / f"n{n:03d}-seed{s}" / "summary.json").read_text())["hours"] for s in (90, 91))
        for n in (1, 2)
    ]
    assert f"{means[0] / means[1]:.2f}×" in table


def test_jobs_and_a_repeated_call(cpfl_command: Command, tmp_path: Path) -> None:
    words = (*WORDS, "--cohorts", "1,2", "--out", "s", "--json")
    first = cpfl_command(*words, "--jobs", "2").good().json
    assert sorted(run["cohorts"] for run in first["runs"]) == [1, 2]
    before = written(tmp_path / "s")
    assert len(before) == 3
    second = cpfl_command(*words).good().json
    assert written(tmp_path / "s") == before
    assert sorted(run["wall_seconds"] for run in second["runs"]) == sorted(run["wall_seconds"] for run in first["runs"])
    assert second["by_cohorts"] == first["by_cohorts"]
    assert [row["cohorts"] for row in second["by_cohorts"]] == [1, 2]
    assert second["by_cohorts"][0]["speed_up"] == 1
    assert second["path"] == "s"
    alone = cpfl_command("run", "digits", *QUICK, "--set", "cohorts=2", "--out", "alone", "--json").good().json
    assert next(r for r in first["runs"] if r["cohorts"] == 2)["student_accuracy"] == alone["student_accuracy"]


def test_a_larger_sweep_takes_in_the_smaller(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "2", "--out", "s").good()
    before = written(tmp_path / "s")
    runs = cpfl_command(*WORDS, "--cohorts", "1,2", "--out", "s", "--json").good().json["runs"]
    assert [run["cohorts"] for run in runs] == [1, 2]
    assert before.items() <= written(tmp_path / "s").items()


def test_an_unfinished_run_of_the_sweep_is_ended(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "2", "--out", "s").good()
    (tmp_path / "s" / "n002-seed90" / "summary.json").unlink()
    assert cpfl_command(*WORDS, "--cohorts", "2", "--out", "s", "--json").good().json["runs"][0]["cohorts"] == 2
    assert (tmp_path / "s" / "n002-seed90" / "summary.json").is_file()


def test_other_settings_are_not_mixed_in(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "1", "--out", "s").good()
    before = written(tmp_path / "s")
    answer = cpfl_command(*WORDS, "--set", "data.alpha=1", "--cohorts", "1", "--out", "s")
    assert answer.code == 2
    assert "n001-seed90 holds a run with other settings" in answer.err
    assert written(tmp_path / "s") == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_diverges_is_told_in_a_sentence(cpfl_command: Command, jobs: int) -> None:
    """Also from a process of its own, whose exceptions travel by pickle."""
    words = ("--cohorts", "2,4", "--set", "federation.lr=1e30", "--out", "s", "--jobs", jobs)
    answer = cpfl_command(*WORDS, *words)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    for word in ("cohort", "client", "round 1", "federation.lr"):
        assert word in answer.err
