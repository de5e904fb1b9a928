"""The words of the command line: help, short options, completion, presets, what is shown and what is not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from tests.processes import Program

import cpfl.cli
from cpfl.cli import options
from cpfl.engines.create import NAMES
from cpfl.settings import choices, experiment_file
from cpfl.trackers import KINDS

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("-s", "max_rounds=2", "-s", "distillation.epochs=1")
EVERY = [(), *((name,) for name in cpfl.cli.COMMANDS), ("data",), ("data", "get"), ("deploy",), ("deploy", "local")]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_h_is_help(cpfl_command: Command, words: tuple[str, ...]) -> None:
    answer = cpfl_command(*words, "-h").good()
    assert answer.out == cpfl_command(*words, "--help").good().out
    assert "Usage: cpfl" in answer.out


@pytest.mark.parametrize("words", [(), ("data",), ("deploy",)], ids=" ".join)
def test_a_group_alone_shows_its_commands(cpfl_command: Command, words: tuple[str, ...]) -> None:
    answer = cpfl_command(*words)
    assert (answer.code, answer.err) == (2, "")
    assert "Commands" in answer.out


@pytest.mark.parametrize(
    ("words", "named", "help_of"),
    [(("run",), "EXPERIMENT", "cpfl run"), (("data", "get", "--mirrror", "x"), "--mirrror", "cpfl data get")],
)
def test_a_mistake_names_the_help_of_its_command(
    cpfl_command: Command, words: tuple[str, ...], named: str, help_of: str
) -> None:
    """One line; the words between are click's, and differ between its versions."""
    answer = cpfl_command(*words)
    (line,) = answer.err.splitlines()
    assert answer.code == 2
    assert line.startswith("cpfl: ")
    assert named in line
    assert line.endswith(f"See {help_of} --help")


def test_brackets_are_shown(cpfl_command: Command) -> None:
    """Rich takes [flower] for a colour."""
    for words in (("--help",), ("deploy", "--help")):
        assert "pip install 'cpfl[flower]'" in cpfl_command(*words).good().out


def test_help_names_what_is_allowed() -> None:
    """Help imports no registry, so it could be wrong."""
    assert set(options.ENGINES) == {"auto", *NAMES}
    assert set(options.TRACKERS) == set(KINDS)
    distill = {one.name: one.metavar for one in typer.main.get_command(cpfl.cli.app).commands["distill"].params}  # type: ignore[attr-defined]
    weights, aggregations = choices.TEACHER_WEIGHTS.names, choices.TEACHER_AGGREGATIONS.names
    assert distill["weights"] == "|".join([*weights, "module:Class"])
    assert distill["aggregation"] == "|".join([*aggregations, "module:Class"])


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("cpfl run di", {"digits"}),
        ("cpfl run mi", {"mine.toml"}),
        ("cpfl run digits --set federation.cl", {"federation.client=", "federation.client_args="}),
        ("cpfl distill r --recipe p", {"paper"}),
        ("cpfl sweep digits -e l", {"lanes"}),
        ("cpfl pre", {"predict", "presets"}),
    ],
)
def test_a_shell_completes(typed: str, completed: set[str], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    environment = {"_CPFL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    process = Program([], tmp_path, os.environ | environment)
    assert process.wait() == 0, process.err
    assert set(process.out.split()) == completed


def test_presets(cpfl_command: Command) -> None:
    out = cpfl_command("presets").good().out
    rows = {row["name"]: row for row in cpfl_command("presets", "--json").good().json}
    assert list(rows) == experiment_file.presets()
    for name, row in rows.items():
        assert f" {name} " in out
        assert len(row["what"]) > 20
    assert rows["digits"]["missing"] == []
    assert rows["cifar10"]["missing"] == ["cifar10", "stl10", "fedscale"]
    assert rows["femnist"]["clients"] == 1000


def test_cohorts_of_a_run(cpfl_command: Command) -> None:
    assert cpfl_command("run", "digits", "-n", 2, *QUICK, "--json").good().json["cohorts"] == 2
    answer = cpfl_command("run", "digits", "--cohorts", 2, "--set", "cohorts=4")
    assert (answer.code, answer.err) == (
        2,
        "cpfl: the number of cohorts is given twice: by --cohorts and by --set cohorts\n",
    )


def test_quiet_and_verbose(cpfl_command: Command) -> None:
    quiet = cpfl_command("run", "digits", "-n", 2, *QUICK, "-q").good()
    assert quiet.out.startswith("global model")
    assert quiet.err == ""
    lines = cpfl_command("run", "digits", "-n", 2, *QUICK, "-v").good().out
    line = r"^cohort (\d) · round (\d) · .* h · training loss [\d.]+ · validation loss [\d.]+$"
    found = re.findall(line, lines, re.M)
    assert sorted(found) == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
    assert "distill: epoch 1 of 1" in lines
    sweep = cpfl_command("sweep", "digits", "-n", "1,2", *QUICK, "-q", "--json").good()
    assert sweep.err == ""
    assert len(sweep.json["runs"]) == 2


def test_a_run_asks_before_it_downloads(cpfl_command: Command, tmp_path: Path) -> None:
    """There is no terminal here, so nobody can answer."""
    answer = cpfl_command("run", "cifar10", "--set", "data.public=letters", "--set", "devices.trace=synthetic")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "cifar10 (170 MB) is not on this machine: cpfl data get cifar10; or allow it here (--download" in answer.err
    assert not (tmp_path / "runs").exists()
