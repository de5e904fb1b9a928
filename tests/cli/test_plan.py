"""cpfl plan: the table, the JSON, the pictures, and runs with other plans than the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import cpfl
from cpfl.experiment import PLANS, Experiment

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

MADE = [plan for plan in PLANS if plan not in ("column", "csv")]
QUICK = (
    "--set",
    "max_rounds=3",
    "--set",
    "distillation.epochs=1",
    "--set",
    "clients=8",
    "--set",
    "data.train_limit=300",
)


def test_table(cpfl_command: Command) -> None:
    out = cpfl_command("plan", "digits", "--set", "cohorting.plan=speed").good().out
    assert "plan speed, n = 4" in out
    for word in ("label skew", "hours a round", "slowest client", "The global server", "learns how long"):
        assert word in out


@pytest.mark.parametrize("plan", MADE)
def test_json(cpfl_command: Command, plan: str) -> None:
    words = ("plan", "digits", "--set", f"cohorting.plan={plan}", "--cohorts", "1,4", "--json")
    tree = cpfl_command(*words).good().json
    assert tree == cpfl_command(*words).good().json
    one, four = tree["plans"]
    assert (one["cohorts"], four["cohorts"], four["plan"]) == (1, 4, plan)
    assert one["skew"] == 0
    assert [row["clients"] for row in four["by_cohort"]] == [10] * 4
    assert np.sum([row["labels"] for row in four["by_cohort"]], axis=0).tolist() == four["labels"] == one["labels"]
    assert four["hours_per_round_longest"] == pytest.approx(one["hours_per_round_longest"])  # the slowest is somewhere
    assert four["skew"] == pytest.approx(np.mean([row["skew"] for row in four["by_cohort"]]))
    assert ("nothing" in four["reveals"]) == (plan == "random")


@pytest.mark.parametrize("local", ["sgd", "scaffold"])  # the latter sends twice as much
def test_expected_rounds_are_those_of_a_run(cpfl_command: Command, tmp_path: Path, local: str) -> None:
    """All clients take part, so every round lasts as long as the plan said, and the same client is waited for."""
    part = ("--set", f"federation.local={local}", "--set", "federation.momentum=0")
    words = ("digits", *QUICK, *part, "--set", "cohorting.plan=speed")
    rows = cpfl_command("plan", *words, "--json").good().json["plans"][0]["by_cohort"]
    cpfl_command("run", *words, "--out", tmp_path / "run").good()
    for row in rows:
        path = tmp_path / "run" / "rounds" / f"cohort-{row['cohort']:04d}.jsonl"
        for line in map(json.loads, path.read_text().splitlines()):
            assert line["seconds"] / 3600 == pytest.approx(row["hours_per_round"])
            assert line["slowest"] == row["slowest"]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "how long every single client's round takes" in about["plan_reveals"]


@pytest.mark.parametrize("cohorts", ["1", "64", "2,8"])
def test_pictures(cpfl_command: Command, tmp_path: Path, cohorts: str) -> None:
    words = ("plan", "digits", "--set", "clients=80", "--cohorts", cohorts)
    out = cpfl_command(*words, "--out", tmp_path / "plan.svg").good().out
    assert "plan.svg" in out
    text = (tmp_path / "plan.svg").read_text()
    assert text.startswith("<svg")
    for n in cohorts.split(","):
        assert f"n = {n}: mean skew" in text
    cpfl_command(*words, "--out", tmp_path / "plan.png").good()
    with Image.open(tmp_path / "plan.png") as image:
        colours = image.convert("RGB").getcolors(2**20)
        assert image.width > 1000
    assert colours is not None
    assert len({colour for count, colour in colours if count > 500}) >= 10  # a class each
    cpfl_command(*words, "--out", tmp_path / "plan.html").good()
    page = (tmp_path / "plan.html").read_text()
    assert "<html" in page
    assert "<script src" not in page  # opens offline
    assert "<link" not in page


def test_many_classes_get_a_scale(tmp_path: Path) -> None:
    from cpfl.report import plan_figure

    row = {"cohort": 0, "clients": 1, "samples": 62, "labels": [1] * 62, "skew": 0.0, "hours_per_round": 1.0}
    row |= {"slowest": 0, "slowest_hours": 2.0}
    view = {"cohorts": 1, "labels": [1] * 62, "skew": 0.0, "hours_per_round": 1.0, "hours_per_round_longest": 1.0}
    spec = plan_figure.picture([view | {"by_cohort": [row]}], "many", [str(c) for c in range(62)])
    text = plan_figure.save(spec, tmp_path / "plan.svg").read_text()
    assert "class, by number" in text
    assert "its slowest client takes part" in text


def test_a_plan_travels_as_csv(cpfl_command: Command, tmp_path: Path) -> None:
    """What one experiment planned, another one takes; a run keeps it though the file goes."""
    cpfl_command("plan", "digits", *QUICK, "--set", "cohorting.plan=label-balanced", "--out", tmp_path / "p.csv").good()
    words = ("digits", *QUICK, "--set", "cohorting.plan=csv", "--set", "cohorting.file=p.csv")
    cpfl_command("run", *words, "--out", tmp_path / "run").good()
    cpfl_command("run", "digits", *QUICK, "--set", "cohorting.plan=label-balanced", "--out", tmp_path / "same").good()
    abouts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "same")]
    assert abouts[0]["plan"] == abouts[1]["plan"]
    (tmp_path / "p.csv").unlink()
    again = cpfl_command("distill", tmp_path / "run", "--weights", "uniform", "--json").good().json
    assert again["teachers"] == [0, 1, 2, 3]


def test_a_column_of_ones_own(tmp_path: Path) -> None:
    """Every client of a region in one cohort; a column that differs within a client is refused."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(12), 10)
    region = np.array(["north", "south", "west"])[owner % 3]
    x, y = rng.random((120, 6)), rng.integers(0, 3, 120)
    tree = {
        "cohorts": 3,
        "clients": 12,
        "max_rounds": 2,
        "data": {"split": "column", "column": "owner"},
        "distillation": {"epochs": 1},
    }
    plan = {"plan": "column", "column": "region"}
    given = {"train": (x, y, {"owner": owner, "region": region, "mixed": y}), "test": (x, y), "public": x}
    run = cpfl.run(Experiment(**tree, cohorting=plan), **given, out=tmp_path / "run")
    about = json.loads((run.path / "run.json").read_text())
    assert about["plan"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert about["plan_reveals"].endswith("every single client's region.")
    with pytest.raises(cpfl.CpflError, match="'mixed' is not the same in all samples of a client"):
        cpfl.run(Experiment(**tree, cohorting=plan | {"column": "mixed"}), **given, out=tmp_path / "no")
    with pytest.raises(cpfl.CpflError, match="no column of the training set; its columns: owner, region, mixed"):
        cpfl.run(Experiment(**tree, cohorting=plan | {"column": "city"}), **given, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


class Seen(cpfl.PlanPart):
    """In turns; it is shown what it names."""

    def __init__(self, names: str = "") -> None:
        self.sees = tuple(names.split())

    def place(self, clients: int, cohorts: int, rng: Any, labels: Any, seconds: Any) -> list[int]:
        assert (labels is not None, seconds is not None) == ("labels" in self.sees, "seconds" in self.sees)
        return [client % cohorts for client in range(clients)]


class Short(Seen):
    def place(self, clients: int, cohorts: int, rng: Any, labels: Any, seconds: Any) -> list[int]:
        return [0, 1, 2, 3]


class Empty(Seen):
    def place(self, clients: int, cohorts: int, rng: Any, labels: Any, seconds: Any) -> list[int]:
        return [0] * clients


class Broken(Seen):
    def place(self, clients: int, cohorts: int, rng: Any, labels: Any, seconds: Any) -> list[int]:
        raise RuntimeError("it is broken\nin two lines")


class Ragged(Seen):
    def place(self, clients: int, cohorts: int, rng: Any, labels: Any, seconds: Any) -> Any:
        return [[0, 1], [2]]


HERE = __name__


@pytest.mark.parametrize(
    ("sees", "told"),
    [("", ["nothing"]), ("labels", ["samples of each label"]), ("labels seconds", ["each label", "round takes"])],
)
def test_a_class_of_ones_own(cpfl_command: Command, tmp_path: Path, sees: str, told: list[str]) -> None:
    """It is shown what it names, and the run's record says so."""
    words = ("--set", f"cohorting.plan={HERE}:Seen", "--set", f"cohorting.plan_args.names={sees}")
    cpfl_command("run", "digits", *QUICK, *words, "--out", "run").good()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["plan"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert all(text in about["plan_reveals"] for text in told)
    assert ("round takes" in about["plan_reveals"]) == ("seconds" in sees)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((f"cohorting.plan={HERE}:Short",), "Short' must place each of the 40 clients in a cohort from 0 to 3"),
        ((f"cohorting.plan={HERE}:Empty",), "and leave none empty"),
        ((f"cohorting.plan={HERE}:Experiment",), "Experiment' is no subclass of cpfl.PlanPart"),
        ((f"cohorting.plan={HERE}:Missing",), "Missing' cannot be loaded"),
        (
            (f"cohorting.plan={HERE}:Seen", "cohorting.plan_args.nams=labels"),
            "plan_args.nams; did you mean names? known: na",
        ),
        (
            (f"cohorting.plan={HERE}:Seen", "cohorting.plan_args.names=3"),
            "plan_args.names = 3 is not allowed: a text is",
        ),
        (
            (f"cohorting.plan={HERE}:Broken",),
            f"cohorting.plan = '{HERE}:Broken' cannot place: it is broken",
        ),
        ((f"cohorting.plan={HERE}:Ragged",), "Ragged' cannot place: "),
        ((f"cohorting.plan={HERE}:Seen", "cohorting.plan_args.names=label"), "sees ('label',): a tuple of labels, sec"),
        (("cohorting.plan_args.share=1",), "plan_args goes with a class of your own"),
    ],
)
def test_classes_that_are_no_plan(cpfl_command: Command, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    answer = cpfl_command("run", "digits", *(w for word in words for w in ("--set", word)), "--out", "run")
    assert answer.code == 2
    assert told in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "cohorting.plan=sped"), "plan = 'sped' is unknown; did you mean speed? Known: random, speed"),
        (("--set", "cohorting.plan=column"), 'plan = "column" needs cohorting.column'),
        (("--set", "cohorting.plan=csv"), 'plan = "csv" needs cohorting.file'),
        (("--set", "cohorting.plan=csv", "--set", "cohorting.file=no.csv"), "'no.csv' cannot be read: No such file"),
        (("--set", "cohorting.plan=column", "--set", "cohorting.column=x"), "no column of the training set"),
        (("--set", "cohorting.skew=-1"), "cohorting.skew = -1 is not allowed"),
        (
            ("--set", "cohorting.plan=multi-objective", "--set", "cohorting.skew=0", "--set", "cohorting.speed=0"),
            "needs skew or speed above 0",
        ),
        (("--cohorts", "1,x"), "--cohorts takes whole numbers"),
        (("--cohorts", "4,4"), "names a number twice"),
        (("--cohorts", "41"), "cohorts = 41 is more than clients = 40"),
        (("--out", "plan.jpg"), "plan.jpg is not allowed: a name that ends in svg, pdf, png, html, csv"),
        (("--out", "plan.csv", "--cohorts", "1,2"), "holds one plan"),
    ],
)  # fmt: skip
def test_mistakes(cpfl_command: Command, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    answer = cpfl_command("plan", "digits", *words)
    assert answer.code == 2
    assert told in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
