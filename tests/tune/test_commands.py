"""The commands, the file and the Python of docs/how-to/tune.md, with smaller runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.pages import ROOT, blocks, commands
from tests.processes import PYTHON, Program
from tests.tune.small_tunes import SETTINGS

from cpfl.settings import Experiment, experiment_file
from cpfl.tuning.result import read
from cpfl.tuning.space import changed_space, read_space

PAGE = ROOT / "docs" / "how-to" / "tune.md"
SHORTER = ["--trials", "3", "--points", "4", "--seeds", "0"]


def ended(process: Program) -> str:
    assert process.wait() == 0, process.err
    return process.out


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """The last one runs what was recommended."""
    settings = [f"--set={key}={value}" for key, value in (SETTINGS | {"max_rounds": 8}).items()]
    (text,) = (block["text"] for block in blocks(PAGE) if block["kind"] == "sh")
    for words in commands(text):
        more = [*SHORTER, *settings, "--device", "cpu", "--engine", "reference"] if words[0] == "tune" else []
        ended(Program([*words, *more], tmp_path, os.environ))
    assert read(tmp_path / "runs" / "tuned")["state"] == "finished"
    assert (tmp_path / "runs" / "recommended" / "summary.json").is_file()


def test_the_python_of_the_page(tmp_path: Path) -> None:
    small = experiment_file.load("digits", settings=SETTINGS | {"max_rounds": 8})
    (tmp_path / "small.toml").write_text(experiment_file.to_toml(small))
    (text,) = (block["text"] for block in blocks(PAGE) if block["kind"] == "python")
    out = ended(Program([text.replace('"digits"', '"small.toml"')], tmp_path, os.environ, PYTHON))
    assert "recommended.toml" in out


def test_the_space_of_the_page(tmp_path: Path) -> None:
    (text,) = (block["text"] for block in blocks(PAGE) if block["kind"] == "toml")
    (tmp_path / "space.toml").write_text(text)
    search, fixed = read_space(tmp_path / "space.toml")
    assert fixed == {"federation.participation": 0.5}
    space = changed_space(Experiment(), [], search, list(fixed))
    assert [one.key for one in space] == ["cohorts", "federation.lr", "federation.server_args.momentum"]
