"""What benchmarks/paper makes of run folders is what they hold."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import cpfl
from cpfl.runs import records

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "paper"
SMALL: dict[str, Any] = {
    "clients": 8, "cohorts": 2, "max_rounds": 10, "snapshots": "2 rounds", "data.train_limit": 400,
    "data.public_limit": 100, "model.args.hidden": 8, "stopping.rule": "joint", "stopping.every": 2, "stopping.legs": 4,
    "federation.server": "fedavgm", "distillation.recipe": "cpfl", "distillation.epochs": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with two momenta."""
    folder = tmp_path_factory.mktemp("runs")
    for momentum in (0.5, 0.9):
        settings = SMALL | {"federation.server_momentum": momentum}
        cpfl.run("digits", out=folder / f"momentum-{momentum}" / "n002-seed90", settings=settings, device="cpu")
    return folder


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(name: str, *words: Any) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        monkeypatch.syspath_prepend(str(SCRIPTS))
        capsys.readouterr()
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


def test_gather(runs: Path, tmp_path: Path, script: Any) -> None:
    out = tmp_path / "runs.json"
    out.write_text('[{"folder": "others/n001-seed90"}]\n')
    for _ in range(2):  # a second time changes nothing
        assert script("gather.py", "--out", out, runs).startswith("3 runs in ")
    other, low, high = json.loads(out.read_text())
    assert other == {"folder": "others/n001-seed90"}
    assert [row["federation"].get("server_momentum", 0.9) for row in (low, high)] == [0.5, 0.9]
    told = summary(runs / "momentum-0.9" / "n002-seed90")
    assert high["folder"] == "momentum-0.9/n002-seed90"
    assert high["student_accuracy"] == pytest.approx(told["student_accuracy"], abs=1e-3)
    assert high["besides"] == {"epochs": 2}
    lines = records.read(runs / "momentum-0.9" / "n002-seed90" / "judgements.jsonl")
    assert [one[0] for one in high["judged: round, CPU hours, %"]] == [line["round"] for line in lines]


def test_chosen(runs: Path, script: Any) -> None:
    last = {
        momentum: records.read(runs / f"momentum-{momentum}" / "n002-seed90" / "judgements.jsonl")[-1]["value"]
        for momentum in (0.5, 0.9)
    }
    assert float(script("chosen.py", *runs.iterdir())) == max(last, key=lambda momentum: last[momentum])


def test_joins_and_rules(runs: Path, tmp_path: Path, script: Any) -> None:
    run, out = runs / "momentum-0.9" / "n002-seed90", tmp_path / "joins.json"
    script("joins.py", "--every", 2, "--device", "cpu", "--out", out, run)
    rows = {row["models"]: row for row in json.loads(out.read_text())}
    told = summary(run)
    assert rows["teachers"]["test"]["probabilities, labels"] == pytest.approx(told["ensemble_accuracy"], abs=1e-3)
    assert rows["teachers"]["teachers"] == pytest.approx(told["teacher_accuracy_mean"], abs=1e-3)
    assert {"round 2", "round 10", "mean of the last 2"} <= set(rows)
    assert "mean of the last 8" not in rows, "there are five"
    printed = script("rules.py", "--legs", 4, out)
    assert "| momentum-0.9/n002-seed90 | ensemble | 1.5 |" in printed


def test_effects_begin_from_the_recipe(runs: Path, tmp_path: Path, script: Any) -> None:
    run, out = runs / "momentum-0.9" / "n002-seed90", tmp_path / "effects.json"
    others = "cpfl: start at the best teacher;cpfl: weights averaged over the last 20 epochs"
    words = ["--data", tmp_path, "--device", "cpu", "--out", out]
    script("effects.py", *words, "--only", f"cpfl;paper;{others}", run)
    rows = {row["change"]: row["test"] for row in json.loads(out.read_text())}
    own, paper = cpfl.distill(run, epochs=100), cpfl.distill(run, recipe="paper")  # the run itself had two epochs
    assert rows["cpfl"] == pytest.approx(own["student_accuracy"], abs=0.01)
    assert rows["paper"] == pytest.approx(paper["student_accuracy"], abs=0.01)
    assert set(rows) == {"cpfl", "paper", *others.split(";")}
