"""Paths of a user: ~ is the home folder, nothing is read without an end, run folders are apart and may lack folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cpfl
from cpfl.errors import CpflError
from cpfl.runs.folder import FOLDERS

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

FEW = {"clients": 6, "cohorts": 2, "max_rounds": 1, "data.train_limit": 200, "data.public_limit": 60}
FEW |= {"model.args.hidden": 8, "distillation.epochs": 1}
WORDS = [word for key, value in FEW.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


def test_the_home_folder(home: Path, cpfl_command: Command) -> None:
    """A shell leaves the ~ of --out=~/x to the program."""
    (home / "data").mkdir()
    cpfl_command("run", "digits", *WORDS, "--device", "cpu", "--out=~/runs/one", "--data=~/data").good()
    cpfl_command("resume", "~/runs/one").good()
    assert "runs/one" in cpfl_command("list", "~/runs").good().out
    cpfl_command("report", "~/runs", "--out=~/page").good()
    cpfl_command("export", "~/runs/one", "--no-onnx", "--out=~/model").good()
    cpfl_command("cohorts", "digits", *WORDS, "--out=~/cohorts.csv").good()
    cpfl_command("run", "~/runs/one/experiment.toml", "--device", "cpu", "--out=~/runs/two").good()
    assert sorted(path.name for path in home.iterdir()) == ["cohorts.csv", "data", "model", "page", "runs"]
    assert not (home.parent / "~").exists()


def test_the_home_folder_from_python(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cpfl.run("digits", settings=FEW, out="~/one", device="cpu")
    assert cpfl.load_run("~/one").summary
    cpfl.sweep("digits", seeds=[90], settings=FEW, out="~/s", device="cpu")
    assert cpfl.sweep("~/s", device="cpu")[0].summary
    assert cpfl.report("~/s", out="~/page").page == home / "page" / "report.html"
    with pytest.raises(CpflError, match="~nobody_here has no home folder"):
        cpfl.run("digits", settings=FEW, out="~nobody_here/run")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("words", [("run", "digits", "--out", ""), ("report", "runs", "--out="), ("resume", "")])
def test_an_empty_path(words: tuple[str, ...], cpfl_command: Command) -> None:
    answer = cpfl_command(*words)
    assert answer.code == 2
    assert "it is empty: the name of a file or folder is needed" in answer.err


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "long"])
@pytest.mark.parametrize("use", ["assignment", "availability", "devices", "experiment"])
def test_a_file_without_an_end(kind: str, use: str, tmp_path: Path, cpfl_command: Command) -> None:
    """Nothing waits for a pipe, and nothing reads a device into memory."""
    path = tmp_path / "file.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "long":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # takes no space
    else:
        path.symlink_to("/dev/zero")
    settings = {
        "assignment": ("assignment.rule=csv", f"assignment.rule_args.file={path}"),
        "availability": (f"devices.availability={path}",),
        "devices": (f"devices.trace={path}",),
        "experiment": (),
    }[use]
    chosen = [word for setting in settings for word in ("--set", setting)]
    answer = cpfl_command("run", path if use == "experiment" else "digits", *chosen, "--out", "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert "file.toml" in answer.err
    assert not (tmp_path / "run").exists()


def test_a_run_in_a_run(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "link").symlink_to(run / "models")
    for out in (run / "models" / "y", run / "new", tmp_path / "link" / "y", tmp_path / "no" / ".." / "run" / "y"):
        with pytest.raises(CpflError, match=f"lies in the run folder {run}"):
            cpfl.run("digits", settings=FEW, out=out, device="cpu")
        assert not out.exists()


def test_nothing_else_is_written_into_a_run(finished: Path, tmp_path: Path, cpfl_command: Command) -> None:
    """But the folder export, which `cpfl export` has without --out."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = sorted(run.rglob("*"))
    (tmp_path / "link").symlink_to(run / "models")
    for out in (run, run / "models", run / "new", tmp_path / "link"):
        answer = cpfl_command("export", "run", "--no-onnx", "--out", out)
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
        assert f"lies in the run folder {run}: choose a folder outside of it" in answer.err
    for out in (run / "app", tmp_path / "link" / "app"):
        answer = cpfl_command("deploy", "new", out)
        assert f"lies in the run folder {run}" in answer.err
    assert sorted(run.rglob("*")) == before
    cpfl_command("export", "run", "--no-onnx", "--out", run / "export").good()


def without_empty_folders(path: Path) -> Path:
    """As after git clone, or unpacking."""
    for folder in FOLDERS:
        if (path / folder).is_dir() and not any((path / folder).iterdir()):
            (path / folder).rmdir()
    return path


@pytest.mark.parametrize("state", ["begun", "trained", "finished"])
def test_missing_empty_folders(state: str, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    if state != "finished":
        (run / "summary.json").unlink()
    if state == "begun":
        for name in FOLDERS:
            shutil.rmtree(run / name)
    without_empty_folders(run)
    assert not (run / "distillations").exists()
    resumed: Any = cpfl.resume(run, device="cpu")
    assert resumed.summary
    without_empty_folders(run)
    cpfl.report(run)
    cpfl.distill(run, epochs=1, device="cpu")
