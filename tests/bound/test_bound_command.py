"""The bound of runs, from the command line and from Python."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command, call
from torch import nn

import cpfl
from cpfl.errors import RunFolderError, SettingError

SMALL = ("clients=6", "data.train_limit=240", "max_rounds=6", "model.args.hidden=8", "distillation.epochs=2")
TERMS = ("risk", "half_divergence", "joint", "hoeffding")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n = 1 and 2, two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    words = [word for setting in SMALL for word in ("--set", setting)]
    call("sweep", "digits", "--cohorts", "1,2", "--seeds", "90,91", "--out", "runs", *words, cwd=folder).good()
    return folder / "runs"


@pytest.fixture(scope="module")
def measured(runs: Path) -> Any:
    """What the command prints as JSON."""
    return call("bound", "runs", "--json", cwd=runs.parent).good().json


def test_the_terms_of_every_n(runs: Path, measured: Any) -> None:
    assert [(row["n"], row["seeds"]) for row in measured["rows"]] == [(1, 2), (2, 2)]
    assert len(measured["runs"]) == 4
    for row in [*measured["rows"], *measured["runs"]]:
        assert row["bound"] == pytest.approx(sum(row[term] for term in TERMS), abs=1e-12)
        halved = (row["half_divergence"] + row["joint"]) / 2
        assert row["bound_in_body"] == pytest.approx(row["risk"] + halved + row["hoeffding"], abs=1e-12)
        assert 0 <= row["half_divergence"] <= 1
        assert row["bound"] > row["cohort_risk"]
        assert row["bound"] > row["global_risk"]
    for one in measured["runs"]:
        summary = cpfl.load_run(runs.parent / one["path"]).summary
        assert one["global_risk"] == pytest.approx(1 - summary["student_accuracy"] / 100, abs=1e-6)
    first, second = [one for one in measured["runs"] if one["n"] == 2]
    row = measured["rows"][1]
    assert row["risk"] == pytest.approx((first["risk"] + second["risk"]) / 2)
    assert row["risk_spread"] == pytest.approx(abs(first["risk"] - second["risk"]) / math.sqrt(2))


def test_runs_that_share_clients_share_their_terms(runs: Path, measured: Any) -> None:
    """A run alone gives what it gives among others, and nothing is written into it."""
    before = sorted(runs.rglob("*"))
    (alone,) = cpfl.bound(runs / "n002-seed91").runs
    (among,) = [one for one in measured["runs"] if Path(one["path"]).name == "n002-seed91"]
    assert alone.numbers() == {key: among[key] for key in alone.numbers()}
    assert sorted(runs.rglob("*")) == before


def test_the_figure_and_the_table(runs: Path, measured: Any, tmp_path: Path) -> None:
    assert {Path(path).name for path in measured["figures"]} == {"bound.svg", "bound.png", "bound.pdf"}
    svg = (runs / "bound.svg").read_text()
    for text in ("Hoeffding term", "global model", "The bound of Theorem 1"):
        assert text in svg
    shown = call("bound", runs, "--divergence", "labels", "--delta", "0.5", "--out", "figures", cwd=tmp_path).good()
    assert "δ = 0.5, divergence: labels" in shown.out
    assert "± sample standard deviation over 2 seeds" in shown.out
    assert (tmp_path / "figures" / "bound.png").is_file()


def test_groups_of_runs_and_unfinished_ones(runs: Path, unfinished: Path, tmp_path: Path) -> None:
    """A folder with another experiment has rows of both, named by what differs; an unfinished run is left out."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(runs / "n001-seed90")
    (tmp_path / "runs" / "c").symlink_to(unfinished)
    words = [word for setting in SMALL for word in ("--set", setting)]
    words += ["--set", "cohorts=1", "--set", "data.alpha=5"]
    call("run", "digits", *words, "--out", "runs/b", cwd=tmp_path).good()
    notes: list[str] = []
    found = cpfl.bound(tmp_path / "runs", divergence="labels", notify=notes.append)
    assert [(row["n"], row["settings"]) for row in found.rows] == [(1, "data.alpha = 0.5"), (1, "data.alpha = 5.0")]
    assert any("is unfinished and left out" in note for note in notes)
    assert found.rows[0]["half_divergence"] > found.rows[1]["half_divergence"]


def test_bad_input(runs: Path, unfinished: Path, tmp_path: Path, cpfl_command: Command) -> None:
    for words, sentence in (
        ((unfinished,), "is unfinished, and the bound is of a finished run: cpfl resume it"),
        ((unfinished.parent,), "there is no finished run in"),
        ((runs, "--delta", "0"), "delta = 0 is not allowed: a number between 0 and 1"),
        ((runs, "--delta", "1"), "delta = 1 is not allowed: a number between 0 and 1"),
        ((runs, "--divergence", "label"), "divergence = 'label' is not allowed: classifier or labels is needed"),
        ((tmp_path / "none",), "there is no folder"),
        ((runs, "--out", runs / "n001-seed90" / "figures"), "lies in the run folder"),
    ):
        answer = cpfl_command("bound", *words)
        assert answer.code == 2
        assert sentence in answer.err
        assert answer.out == ""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("run.json", "summary.json"):
        (damaged / name).write_bytes((runs / "n001-seed90" / name).read_bytes())
    settings = (runs / "n001-seed90" / "experiment.toml").read_text()
    (damaged / "experiment.toml").write_text(settings.replace("seed = 90", "seed = 91"))
    with pytest.raises(RunFolderError, match="was changed after it was written"):
        cpfl.bound(damaged)


def test_a_cohort_that_was_left_out_is_no_source(tmp_path: Path) -> None:
    """With a quorum and unfinished = drop, the global model may have fewer teachers than there are cohorts."""
    words = [word for setting in SMALL for word in ("--set", setting)]
    words += ["--set", "cohorts=3", "--set", "distillation.quorum=0.3", "--set", "distillation.unfinished=drop"]
    call("run", "digits", *words, "--out", "run", cwd=tmp_path).good()
    run = cpfl.load_run(tmp_path / "run")
    assert len(run.summary["teachers"]) == 1
    (one,) = cpfl.bound(run.path, divergence="labels").runs
    assert one.cohort_risk == one.global_risk == pytest.approx(1 - run.summary["student_accuracy"] / 100, abs=1e-6)


def test_own_arrays(tmp_path: Path) -> None:
    """A model and arrays of one's own are given again; one client is the whole federation."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    own = {"model": nn.Linear(4, 2), "train": (x[:60], y[:60]), "test": (x[60:100], y[60:100]), "public": x[100:]}
    settings = {"max_rounds": 3, "federation.lr": 0.5, "data.split": "iid"}
    run = cpfl.run(cpfl.Experiment(cohorts=1, clients=1), out=tmp_path / "run", settings=settings, **own)
    with pytest.raises(RunFolderError, match="give model again"):
        cpfl.bound(run.path)
    found = cpfl.bound(run.path, **own, delta=0.1)
    (one,) = found.runs
    assert one.terms.hoeffding == pytest.approx(np.sqrt(np.log(2 / 0.1) / (2 * 54)))
    assert one.cohort_risk == one.global_risk
    assert json.loads(json.dumps(found.tree()))["rows"][0]["seeds"] == 1


def test_numbers_have_no_right_and_wrong(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    own = {"train": (x[:60], x[:60, 0]), "test": (x[60:100], x[60:100, 0]), "public": x[100:]}
    settings = {"max_rounds": 2, "data.split": "iid", "model.objective": "regression", "model.name": "mlp"}
    run = cpfl.run(cpfl.Experiment(cohorts=1, clients=2), out=tmp_path / "run", settings=settings, **own)
    with pytest.raises(SettingError, match=r"model\.objective = 'regression' has no classes"):
        cpfl.bound(run.path, **own)
