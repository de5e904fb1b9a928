"""Without the packages of an extra: one sentence that names it, and everything else works."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cpfl
from cpfl.data import archives
from cpfl.errors import CpflError, DataError

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these were not installed; the program looks for them when it needs them."""
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def test_an_export_without_onnx(cpfl_command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are written all the same."""
    without(monkeypatch, "onnx", "onnxscript")
    answer = cpfl_command("export", run).good()
    assert sorted(path.name for path in (run / "export").iterdir()) == ["model.json", "model.safetensors"]
    assert answer.err == "model.onnx is not written: it needs two more packages, pip install 'cpfl[onnx]'\n"
    shutil.rmtree(run / "export")
    answer = cpfl_command("export", run, "--onnx")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "pip install 'cpfl[onnx]'" in answer.err
    assert sorted(path.name for path in (run / "export").iterdir()) == ["model.json", "model.safetensors"]
    assert [path.name for path in cpfl.export(run, onnx=False)] == ["model.json", "model.safetensors"]


def test_a_report_without_what_draws(cpfl_command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "vl_convert")
    before = sorted(run.rglob("*"))
    for words in (("report", run), ("bound", run, "--out", run.parent / "figures")):
        answer = cpfl_command(*words)
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer
        assert "pip install 'cpfl[report]'" in answer.err
    assert sorted(run.rglob("*")) == before
    assert not (run.parent / "figures").exists()
    with pytest.raises(CpflError, match=r"cpfl\[report\]"):
        cpfl.load_run(run).plot().save(run.parent / "loss.svg")
    assert "<svg" not in cpfl.load_run(run)._repr_html_()
    assert "global model" in cpfl.load_run(run)._repr_html_()
    assert "finished" in cpfl_command("list", run.parent).good().out


def test_a_sweep_without_what_draws(cpfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are made and the table is shown."""
    without(monkeypatch, "vl_convert")
    words = ("sweep", "digits", "-n", "1,2", "-s", "max_rounds=2", "-s", "distillation.epochs=1", "-o", "s")
    answer = cpfl_command(*words).good()
    assert "What n costs and gains" in answer.out
    assert "no picture: figures need a package that is not installed: pip install 'cpfl[report]'" in answer.err
    assert len(list((tmp_path / "s").glob("*/summary.json"))) == 2


def test_house_numbers_without_what_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "scipy", "scipy.io")
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB")
    with pytest.raises(DataError, match=r"train_32x32.mat is read by .*: pip install 'cpfl\[data\]'$"):
        archives.read(tmp_path, "svhn", "train")


def test_a_doctor_who_finds_nothing(cpfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is optional and missing is not called fine, and is no failure."""
    packages = {
        "onnx": "onnx",
        "vl_convert": "report",
        "scipy": "data",
        "ray": "ray",
        "flwr": "flower",
        "optuna": "tune",
    }
    packages |= {name: name for name in ("tensorboard", "mlflow", "wandb")}
    without(monkeypatch, *packages)
    lines = cpfl_command("doctor").good().out.splitlines()
    for extra in packages.values():
        (line,) = (line for line in lines if re.match(rf"-    {extra}  ", line))
        assert f"pip install 'cpfl[{extra}]'" in line
    checks = {check["what"]: check for check in cpfl_command("doctor", "--json").good().json}
    assert checks["flower"]["fine"] is None
    assert "tinyimagenet32" not in checks["data to fetch"]["found"]
    assert "tinyimagenet32" in checks["data by hand"]["found"]
    assert json.dumps(checks)
