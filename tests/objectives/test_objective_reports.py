"""What people read of a run carries the metric's name, also where the score is negative."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tests.objectives.made_up import trained

import cpfl
from cpfl.inference.answers import described
from cpfl.inference.global_model import predict
from cpfl.objectives.base import objective
from cpfl.reports import tables
from cpfl.reports.content import all_figures, content
from cpfl.settings import Model
from cpfl.trackers import series_name

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression with one cohort and with two, hardly trained: worse than the labels' mean."""
    folder = tmp_path_factory.mktemp("runs")
    for n in (1, 2):
        joint = {"stopping.rule": "joint", "stopping.eval_interval": 1, "max_rounds": 2, "federation.lr": 1e-6}
        trained("regression", folder / str(n), cohorts=n, **joint)
    return folder


def texts(value: Any) -> list[str]:
    """All texts of a tree."""
    if isinstance(value, dict):
        return [text for key, one in value.items() if key not in ("field", "id") for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


def test_a_report(runs: Path) -> None:
    tree = content([runs / "1", runs / "2"])
    assert json.loads((runs / "1" / "summary.json").read_text())["student_accuracy"] < 0
    (group,) = tree["groups"]
    assert group["metric"] == "R²"
    assert "R²" in tree["advice"][0]["evidence"]
    assert not [text for text in texts(tree["advice"]) if "ccurac" in text]
    titles = {figure["id"]: figure["title"] for figure in all_figures(tree)}
    assert titles["accuracy-against-n"] == "R² against n"
    assert titles["evaluations"] == "R² of the ensemble during training"
    shown = texts(tree["groups"])
    assert not [text for text in shown if "ccurac" in text and "datum" not in text]
    assert not [text for text in shown if "{metric}" in text.lower()]
    page, _, _ = cpfl.report(runs, out=runs / "report")
    text = page.read_text()
    assert "R² of teachers and student in %" in text
    assert "student R² %" in text


def test_tables_of_a_terminal(runs: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(tables.run_list(tables.overview(runs)))
    console.print(tables.trade_off([cpfl.load_run(runs / n).summary for n in ("1", "2")], 200))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "%: R²" in shown
    assert shown.count("R²") == 3  # and in the row of each run


def test_a_run_on_a_terminal(cpfl_command: Command) -> None:
    words = ("data.split=iid", "max_rounds=2", "distillation.epochs=1", "data.train_limit=200", "data.public_limit=50")
    settings = [word for setting in words for word in ("--set", setting)]
    answer = cpfl_command("run", "digits", *settings, "--set", "model.objective=regression", "--out", "run").good()
    score = cpfl_command("list", ".", "--json").good().json[0]["student_accuracy"]
    assert f"R² {score:.2f} % on the test set" in answer.out
    assert "accuracy" not in answer.out


def test_names_of_series() -> None:
    names = {"accuracy": "accuracy", "R²": "R2", "accuracy of labels": "accuracy_of_labels", "²": "2", "θ": "score"}
    assert {name: series_name(name) for name in names} == names


def test_answers() -> None:
    """A class with its probability, labels with all probabilities, or numbers."""

    def of(name: str, answers: Any) -> list[dict[str, Any]]:
        return list(described(objective(Model(objective=name)), torch.tensor(answers), ["no", "yes", "maybe"]))

    (row,) = of("classification", [[0.0, 0.0, np.log(2)]])
    assert (row["class"], row["name"], row["probability"]) == (2, "maybe", pytest.approx(0.5))
    yes, no = of("binary", [[np.log(3)], [-np.log(4)]])
    assert (yes["class"], yes["name"], yes["probability"]) == (1, "yes", pytest.approx(0.75))
    assert (no["class"], no["name"], no["probability"]) == (0, "no", pytest.approx(0.8))
    (row,) = of("multi-label", [[np.log(3), -1.0, 0.5]])
    assert row["answer"] == [0, 2]
    assert row["probabilities"][0] == pytest.approx(0.75)
    assert of("regression", [[1.5, -2.0]]) == [{"answer": [1.5, -2.0]}]
    assert of("per-position", [[[0.0, 1.0], [1.0, 0.0]]]) == [{"answer": [1, 0]}]


def test_predictions_of_images(tmp_path: Path, cpfl_command: Command) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (80, 1, 8, 8), np.uint8), rng.integers(0, 2, (80, 3))
    settings = {"clients": 4, "cohorts": 2, "max_rounds": 1, "distillation.epochs": 1, "data.split": "iid"}
    cpfl.run(
        cpfl.Experiment(), train=(images, labels), public=images, out=tmp_path / "run", device="cpu",
        engine="reference", settings=settings | {"model.objective": "multi-label"},
    )  # fmt: skip
    Image.fromarray(images[0, 0]).save(tmp_path / "one.png")
    (row,) = predict(tmp_path / "run", tmp_path / "one.png")
    assert row["answer"] == [k for k, p in enumerate(row["probabilities"]) if p > 0.5]
    assert str(row["answer"]) in cpfl_command("predict", tmp_path / "run", tmp_path / "one.png").good().out
