"""The paper's figures are stored in the run folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cpfl.errors import SettingError
from cpfl.presets.published import differences, published
from cpfl.settings import experiment_file

if TYPE_CHECKING:
    from conftest import Command


def published_for(preset: str, **settings: Any) -> dict[str, Any] | None:
    return published(experiment_file.with_settings(experiment_file.load(preset), settings))


def test_the_figures_of_the_paper() -> None:
    hard = published_for("cifar10")
    assert hard is not None
    by_n = {row["n"]: row for row in hard["by_n"]}
    assert by_n[4] == {
        "n": 4, "teachers": 65.76, "teachers_spread": 2.63, "student": 69.79, "student_spread": 0.55,
        "hours": 218, "cpu_hours": 4249,
    }  # fmt: skip
    assert round(by_n[200]["hours"]) == 59
    assert round(by_n[200]["cpu_hours"]) == 634
    assert {(row["n"], row["hours"]): row["student"] for row in hard["at"]}[16, 15] == 56.7
    even = published_for("cifar10", **{"data.alpha": 1.0})
    assert even is not None
    assert [row["n"] for row in even["by_n"]] == [4, 16, 64, 200]
    assert even["at"] == []
    writers = published_for("femnist", cohorts=64, seed=3)
    assert writers is not None
    assert {row["n"]: row.get("student") for row in writers["by_n"]} == {1: 77.4, 4: None, 64: 65.7}


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("digits", {}),
        ("mnist-writers", {}),
        ("cifar10", {"clients": 100}),
        ("cifar10", {"model.name": "mlp"}),
        ("cifar10", {"data.train_limit": 5000}),
    ],
)
def test_none_for_other_experiments(preset: str, settings: dict[str, Any]) -> None:
    assert published_for(preset, **settings) is None


def found(preset: str, **settings: Any) -> list[str]:
    return differences(experiment_file.with_settings(experiment_file.load(preset), settings))


def test_settings_that_differ_are_listed() -> None:
    assert found("cifar10", cohorts=64, seed=3, **{"data.alpha": 1.0, "snapshots": "50 rounds"}) == []
    assert found("digits") == []
    other = {"data.public": "tinyimagenet32", "data.public_fit": "exact", "stopping.patience": 100, "precision": "bf16"}
    assert found("cifar10", **other) == [
        "precision = bf16 (tf32)", "data.public = tinyimagenet32 (stl10)", "stopping.patience = 100 (50)",
    ]  # fmt: skip
    ours = found("cifar10-cpfl")
    assert "federation.server = fedavgm (mean)" in ours
    assert "distillation.recipe = cpfl (paper)" in ours
    assert not any(line.startswith("distillation.epochs") for line in ours), "the recipe says it"
    assert not any(line.startswith("stopping.min_gain") for line in ours), "the preset says it"


def test_settings_that_differ_from_the_recipe_are_listed() -> None:
    recipe = {"distillation.recipe": "cpfl"}
    assert found("cifar10", **recipe) == ["distillation.recipe = cpfl (paper)"]
    assert found("cifar10", **recipe, **{"distillation.epochs": 3, "distillation.aggregation": "logits"}) == [
        "distillation.recipe = cpfl (paper)",
        "distillation.aggregation = logits (recipe cpfl: probabilities)",
        "distillation.epochs = 3 (recipe cpfl: 100)",
    ]
    assert found("cifar10", **recipe, **{"distillation.epochs": 50}) == [
        "distillation.recipe = cpfl (paper)",
        "distillation.epochs = 50 (recipe cpfl: 100)",
    ], "though the paper has as many"


def test_settings_that_differ_under_the_rule_joint_are_listed() -> None:
    plain = found("cifar10-cpfl")
    other = {
        "stopping.min_gain": 3,
        "stopping.metric": "public-agreement",
        "stopping.eval_interval": 50,
        "stopping.eval_window": 8,
    }
    lines = found("cifar10-cpfl", **other)
    assert [line for line in lines if line not in plain] == [
        "stopping.metric = public-agreement (preset cifar10-cpfl: ensemble-accuracy)",
        "stopping.eval_interval = 50 (preset cifar10-cpfl: 25)",
        "stopping.min_gain = 3.0 (preset cifar10-cpfl: 1.5)",
        "stopping.eval_window = 8 (preset cifar10-cpfl: 6)",
    ]
    assert [line for line in lines if line in plain] == plain
    assert found("femnist", **{"stopping.rule": "joint"}) == ["stopping.rule = joint (plateau)"]
    assert found("femnist", **{"stopping.rule": "joint", "stopping.min_gain": 1.5}) == [
        "stopping.rule = joint (plateau)",
        "stopping.min_gain = 1.5 (preset femnist: 4.0)",
    ]
    with pytest.raises(SettingError, match=r"stopping\.min_gain has no effect here"):
        found("femnist", **{"stopping.min_gain": 1.5})


def test_an_alpha_that_the_paper_only_draws() -> None:
    middle = published_for("cifar10", **{"data.alpha": 0.3})
    assert middle is not None
    assert middle["by_n"] == []


def test_they_are_stored_in_the_run_folder(cpfl_command: Command, tmp_path: Path) -> None:
    """A real run of the preset, on images that only look like its data."""
    rng = np.random.default_rng(0)
    for name, split, labels in (("cifar10", "train", 800), ("cifar10", "test", 20), ("public", "train", 0)):
        images = rng.integers(0, 256, (labels or 40, 32, 32, 3), dtype=np.uint8)
        columns: dict[str, Any] = {"image": [{"bytes": _png(image), "path": None} for image in images]}
        if labels:
            columns["label"] = np.arange(labels) % 10
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "data" / name / f"{split}-00000-of-00001.parquet")
    words = [("data.public", "public"), ("devices.trace", "synthetic"), ("max_rounds", 1), ("distillation.epochs", 1)]
    chosen = [word for key, value in words for word in ("--set", f"{key}={value}")]
    cpfl_command("run", "cifar10", "--data", "data", "--out", "run", *chosen).good()
    carried = json.loads((tmp_path / "run" / "run.json").read_text())["published"]
    assert carried == published_for("cifar10")
    cpfl_command("report", "run").good()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "69.79 ± 0.55" in page
    assert "the paper advises n between 4 and 16" in page
    assert "data.public = public (stl10), devices.trace = synthetic (fedscale), distillation.epochs = 1 (50)." in page
    assert "Settings that differ from the paper are listed under the table." in page


def _png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()
