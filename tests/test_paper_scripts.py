"""The scripts in benchmarks/paper compute their tables from what run folders hold."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import cpfl
from cpfl.data import parquet
from cpfl.runs import records

DATA = Path(__file__).parents[2] / "shared" / "data"
RUNS = Path(__file__).parents[1] / "results" / "paper" / "runs.json"
SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "paper"
SMALL: dict[str, Any] = {
    "clients": 8, "cohorts": 2, "max_rounds": 10, "snapshots": "2 rounds", "data.train_limit": 400,
    "data.public_limit": 100, "model.args.hidden": 8, "stopping.rule": "joint", "stopping.eval_interval": 2,
    "stopping.eval_window": 4, "federation.server": "fedavgm", "distillation.recipe": "cpfl", "distillation.epochs": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with two momenta."""
    folder = tmp_path_factory.mktemp("runs")
    for momentum in (0.5, 0.9):
        settings = SMALL | {"federation.server_args.momentum": momentum}
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


def test_collect(runs: Path, tmp_path: Path, script: Any) -> None:
    out = tmp_path / "runs.json"
    out.write_text('[{"folder": "others/n001-seed90"}]\n')
    for _ in range(2):  # a second time changes nothing
        assert script("collect.py", "--out", out, runs).startswith("3 runs in ")
    other, low, high = json.loads(out.read_text())
    assert other == {"folder": "others/n001-seed90"}
    assert [row["federation"]["server_args"]["momentum"] for row in (low, high)] == [0.5, 0.9]
    expected = summary(runs / "momentum-0.9" / "n002-seed90")
    assert high["folder"] == "momentum-0.9/n002-seed90"
    assert high["student_accuracy"] == pytest.approx(expected["student_accuracy"], abs=1e-3)
    assert high["changes of the recipe"] == {"epochs": 2}
    lines = records.read(runs / "momentum-0.9" / "n002-seed90" / "evaluations.jsonl")
    assert [one[0] for one in high["evaluations: round, CPU hours, %"]] == [line["round"] for line in lines]


def test_best_momentum(runs: Path, script: Any) -> None:
    last = {
        momentum: records.read(runs / f"momentum-{momentum}" / "n002-seed90" / "evaluations.jsonl")[-1]["accuracy"]
        for momentum in (0.5, 0.9)
    }
    assert float(script("best_momentum.py", *runs.iterdir())) == max(last, key=lambda momentum: last[momentum])


def test_aggregations_and_rules(runs: Path, tmp_path: Path, script: Any) -> None:
    run, out = runs / "momentum-0.9" / "n002-seed90", tmp_path / "aggregations.json"
    script("aggregations.py", "--every", 2, "--device", "cpu", "--out", out, run)
    rows = {row["models"]: row for row in json.loads(out.read_text())}
    expected = summary(run)
    assert rows["teachers"]["test"]["probabilities, labels"] == pytest.approx(expected["ensemble_accuracy"], abs=1e-3)
    assert rows["teachers"]["teachers"] == pytest.approx(expected["teacher_accuracy_mean"], abs=1e-3)
    assert {"round 2", "round 10", "mean of the last 2"} <= set(rows)
    assert "mean of the last 8" not in rows, "there are five"
    printed = script("rules.py", "--window", 4, out)
    assert "| momentum-0.9/n002-seed90 | ensemble-accuracy | 1.5 |" in printed


def test_effects_start_from_the_recipe(runs: Path, tmp_path: Path, script: Any) -> None:
    run, out = runs / "momentum-0.9" / "n002-seed90", tmp_path / "effects.json"
    others = "cpfl: start at the best teacher;cpfl: weights averaged over the last 20 epochs"
    words = ["--data", tmp_path, "--device", "cpu", "--out", out]
    script("effects.py", *words, "--only", f"cpfl;paper;{others}", run)
    rows = {row["change"]: row["test"] for row in json.loads(out.read_text())}
    own, paper = cpfl.distill(run, epochs=100), cpfl.distill(run, recipe="paper")  # the run itself had two epochs
    assert rows["cpfl"] == pytest.approx(own["student_accuracy"], abs=0.01)
    assert rows["paper"] == pytest.approx(paper["student_accuracy"], abs=0.01)
    assert set(rows) == {"cpfl", "paper", *others.split(";")}


@pytest.mark.skipif(not (DATA / "cifar10").is_dir(), reason="the real data sets are not beside the project")
def test_figures_of_the_collected_runs(tmp_path: Path, script: Any) -> None:
    runs = {run["folder"]: run for run in json.loads(RUNS.read_text())}
    chosen = [runs["augmented/n016-seed90"], runs["augmented/n200-seed90"]]
    (tmp_path / "runs.json").write_text(json.dumps(chosen))
    words = ["--data", DATA, "--runs", tmp_path / "runs.json", "--out", tmp_path]
    printed = script("figures.py", *words)
    found = re.search(r"α = 0.1: 75 % of the cohorts had stopped at n = 16 after (.+) h, n = 200 after (.+) h", printed)
    assert found is not None
    sixteen, most = map(float, found.groups())
    assert 0 < most < 5, "as the paper says"
    assert 5 < sixteen < chosen[0]["hours"]
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert {"accuracy-against-n", "traffic-against-n", "finish-times-0.1", "samples-0.1"} <= drawn
    chosen[0]["rounds of cohorts"][0] *= 100  # rounds that the run did not have
    (tmp_path / "runs.json").write_text(json.dumps(chosen))
    with pytest.raises(SystemExit, match="the rounds of its cohorts take"):
        script("figures.py", *words)


def test_a_seed_that_was_run_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    tables = importlib.import_module("tables")
    rows = [{"n": 4, "alpha": 1, "seed": seed, "folder": name} for seed, name in ((90, "a"), (91, "b"), (90, "c"))]
    assert [row["folder"] for row in tables.once(rows)] == ["c", "b"]


def test_windows_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    windows = importlib.import_module("views").windows
    x = torch.rand(1, 3, 32, 32)

    def seen(flip: int, side: float, down: float, right: float) -> torch.Tensor:
        shown: torch.Tensor = windows(x, torch.tensor([[0.0, 0, flip, 0, 0, side, down, right, 0, 0]]))
        return shown

    torch.testing.assert_close(seen(0, 1.0, 0.0, 0.0), x)
    torch.testing.assert_close(seen(1, 1.0, 0.0, 0.0), x.flip(-1))
    corner = seen(0, 0.5, -0.5, 0.5)  # half a side, up and to the right
    pairs = (
        corner[..., 1:-1, 1:-1].reshape(1, 3, 15, 2, 15, 2).mean(dim=(3, 5))
    )  # samples lie a quarter off the middles
    assert (pairs.mean() - x[..., :16, 16:].mean()).abs() < 0.02
    assert seen(0, 1.25, 0.25, 0.0)[..., 31, :].abs().max() == 0, "black beyond the border"


@pytest.mark.skipif(not (DATA / "cifar10").is_dir(), reason="the real data sets are not beside the project")
def test_views_start_from_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for held, split, count in (("cifar10", "train", 200), ("cifar10", "test", 60), ("tinyimagenet32", "train", 32)):
        (tmp_path / held).mkdir(exist_ok=True)
        shard = next((DATA / held).glob(f"{split}-00000*.parquet"))
        few = next(pq.ParquetFile(shard).iter_batches(count))
        pq.write_table(pa.Table.from_batches([few]), tmp_path / held / f"{split}-00000-of-00001.parquet")
    (tmp_path / "fedscale").symlink_to(DATA / "fedscale")
    settings = {
        "cohorts": 2, "clients": 4, "data.public": "tinyimagenet32", "data.public_fit": "exact",
        "stopping.rule": "rounds", "stopping.rounds": 1, "distillation.epochs": 1,
    }  # fmt: skip
    run = tmp_path / "runs" / "n002"
    cpfl.run("cifar10-cpfl", out=run, settings=settings, data=tmp_path, device="cpu")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    effects, views = map(importlib.import_module, ("effects", "views"))
    redistill = effects.Redistillation(run, tmp_path, torch.device("cpu"))

    def student(name: str = "") -> torch.Tensor:
        """Its weights after a view with squares and one without."""
        weights: list[torch.Tensor] = []

        def train(module: torch.nn.Module, *others: Any) -> Any:
            epochs = effects.plain(module, *others)
            weights.extend(value.detach().flatten() for value in module.state_dict().values())
            return epochs

        with views.augmented(views.AUGMENTATIONS[name]) if name else contextlib.nullcontext():
            redistill({**effects.OURS, "distillation.epochs": 2}, train)
        return torch.cat(weights)

    plain = student()
    assert torch.equal(student("as in cpfl"), plain)
    for name in views.AUGMENTATIONS.keys() - {
        "as in cpfl",
        "6 views",
    }:  # the second epoch shows the second view either way
        assert not torch.equal(student(name), plain), name


def test_photographs(tmp_path: Path, script: Any) -> None:
    """Only large pictures without an alpha channel are cut up, wherever in a file they lie."""

    def webp(mode: str, size: tuple[int, int], colour: tuple[int, ...]) -> bytes:
        held = io.BytesIO()
        Image.new(mode, size, colour).save(held, "webp", lossless=True)
        return held.getvalue()

    pieces = [
        webp("RGB", (300, 200), (250, 0, 0)),
        webp("RGBA", (300, 300), (0, 250, 0, 9)),
        webp("RGB", (99, 99), (0, 0, 9)),
    ]
    (tmp_path / "held.rcc").write_bytes(b"qres" + b"RIFF....WEBP".join(pieces))
    out = script("photographs.py", "--count", 5, "--data", tmp_path, tmp_path / "held.rcc")
    assert out.startswith("5 windows of 1 photographs in ")
    found = parquet.read(tmp_path / "photographs", "train")
    assert found is not None
    assert found.x.shape == (5, 3, 96, 96)
    assert np.asarray(found.x)[:, 0].min() > 230
    assert np.asarray(found.x)[:, 1:].max() < 20
