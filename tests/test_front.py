"""benchmarks/front.py: a small front runs, is continued, and chooses by validation samples alone."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pages import ROOT

FRONT = ROOT / "benchmarks" / "front.py"
SMALL = """
title = "a small front"
experiment = "digits"
seeds = [90, 91]
hours = [0.05, 0.1]
settings = {"data.train" = "digits", "max_rounds" = 100}

[rows."n = 1"]
settings = {cohorts = 1}
tune = {"federation.lr" = [0.00001, 0.05]}

[rows."two cohorts"]
settings = {cohorts = 2, "meetings.rule" = "mean", "meetings.interval" = "3m", "meetings.final" = "merge"}
"""


def front(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["front.py", *words])
    runpy.run_path(str(FRONT), run_name="__main__")


def test_a_small_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    words = [str(tmp_path / "small.toml"), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    front(monkeypatch, *words, "--engine", "reference", "--rows", "n = 1")
    front(monkeypatch, *words, "--engine", "reference")
    lines = (tmp_path / "out" / "values.jsonl").read_text().splitlines()
    values: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(values) == (2 + 1) * 2 * 2  # settings, seeds, hours
    # With a learning rate near 0 nothing is learnt: the other one is chosen.
    shown = capsys.readouterr().out
    assert "lr 0.05" in shown
    assert "lr 1e-05" not in shown
    assert "After 0.1 h, 'two cohorts' has" in shown
    assert (tmp_path / "out" / "front.png").stat().st_size > 1000
    assert len(list((tmp_path / "runs").glob("*/*/summary.json"))) == 6


def test_test_samples_choose_nothing() -> None:
    best = runpy.run_path(str(FRONT))["best"]
    one = {"row": "a", "hours": 1.0, "seed": 90, "tuned": {"x": 1}, "accuracy": 90.0, "validation": 70.0}
    other = one | {"tuned": {"x": 2}, "accuracy": 80.0, "validation": 71.0}
    assert best([one, other]) == [other]
