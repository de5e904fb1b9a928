"""cpfl cohorts: the table, the JSON, the pictures, and runs with other assignments than the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import cpfl
from cpfl import Experiment
from cpfl.cohorts.base import ClientView
from cpfl.settings.choices import ASSIGNMENT_RULES

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

MADE = [rule for rule in ASSIGNMENT_RULES.names if rule not in ("column", "csv")]
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
    out = cpfl_command("cohorts", "digits", "--set", "assignment.rule=speed").good().out
    assert "assignment speed, n = 4" in out
    for word in ("label skew", "hours a round", "slowest client", "The global server", "learns how long"):
        assert word in out


@pytest.mark.parametrize("rule", MADE)
def test_json(cpfl_command: Command, rule: str) -> None:
    words = ("cohorts", "digits", "--set", f"assignment.rule={rule}", "--cohorts", "1,4", "--json")
    tree = cpfl_command(*words).good().json
    assert tree == cpfl_command(*words).good().json
    one, four = tree["assignments"]
    assert (one["cohorts"], four["cohorts"], four["rule"]) == (1, 4, rule)
    assert one["skew"] == 0
    assert [row["clients"] for row in four["by_cohort"]] == [10] * 4
    assert np.sum([row["labels"] for row in four["by_cohort"]], axis=0).tolist() == four["labels"] == one["labels"]
    assert four["hours_per_round_longest"] == pytest.approx(one["hours_per_round_longest"])  # the slowest is somewhere
    assert four["skew"] == pytest.approx(np.mean([row["skew"] for row in four["by_cohort"]]))
    assert ("nothing" in four["reveals"]) == (rule == "random")


@pytest.mark.parametrize("local", ["sgd", "scaffold"])  # the latter sends twice as much
def test_expected_rounds_are_those_of_a_run(cpfl_command: Command, tmp_path: Path, local: str) -> None:
    """All clients take part, so every round lasts as long as the command said, and the same client is waited for."""
    part = ("--set", f"federation.client={local}", "--set", "federation.momentum=0")
    words = ("digits", *QUICK, *part, "--set", "assignment.rule=speed")
    rows = cpfl_command("cohorts", *words, "--json").good().json["assignments"][0]["by_cohort"]
    cpfl_command("run", *words, "--out", tmp_path / "run").good()
    for row in rows:
        path = tmp_path / "run" / "rounds" / f"cohort-{row['cohort']:04d}.jsonl"
        for line in map(json.loads, path.read_text().splitlines()):
            assert line["seconds"] / 3600 == pytest.approx(row["hours_per_round"])
            assert line["slowest"] == row["slowest"]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "how long every single client's round takes" in about["assignment_reveals"]


@pytest.mark.parametrize("cohorts", ["1", "64", "2,8"])
def test_pictures(cpfl_command: Command, tmp_path: Path, cohorts: str) -> None:
    words = ("cohorts", "digits", "--set", "clients=80", "--cohorts", cohorts)
    out = cpfl_command(*words, "--out", tmp_path / "cohorts.svg").good().out
    assert "cohorts.svg" in out
    text = (tmp_path / "cohorts.svg").read_text()
    assert text.startswith("<svg")
    for n in cohorts.split(","):
        assert f"n = {n}: mean skew" in text
    cpfl_command(*words, "--out", tmp_path / "cohorts.png").good()
    with Image.open(tmp_path / "cohorts.png") as image:
        colours = image.convert("RGB").getcolors(2**20)
        assert image.width > 1000
    assert colours is not None
    assert len({colour for count, colour in colours if count > 500}) >= 10  # a class each
    cpfl_command(*words, "--out", tmp_path / "cohorts.html").good()
    page = (tmp_path / "cohorts.html").read_text()
    assert "<html" in page
    assert "<script src" not in page  # opens offline
    assert "<link" not in page


def test_many_classes_get_a_scale(tmp_path: Path) -> None:
    from cpfl.reports import assignment_figure, style

    row = {"cohort": 0, "clients": 1, "samples": 62, "labels": [1] * 62, "skew": 0.0, "hours_per_round": 1.0}
    row |= {"slowest": 0, "slowest_hours": 2.0}
    view = {"cohorts": 1, "labels": [1] * 62, "skew": 0.0, "hours_per_round": 1.0, "hours_per_round_longest": 1.0}
    spec = assignment_figure.picture([view | {"by_cohort": [row]}], "many", [str(c) for c in range(62)])
    text = style.save(spec, tmp_path / "cohorts.svg").read_text()
    assert "class, by number" in text
    assert "its slowest client takes part" in text


def test_an_assignment_is_written_and_read_as_csv(cpfl_command: Command, tmp_path: Path) -> None:
    """What one experiment planned, another one takes; a run keeps it though the file goes."""
    cpfl_command(
        "cohorts", "digits", *QUICK, "--set", "assignment.rule=label-balanced", "--out", tmp_path / "p.csv"
    ).good()
    words = ("digits", *QUICK, "--set", "assignment.rule=csv", "--set", "assignment.rule_args.file=p.csv")
    cpfl_command("run", *words, "--out", tmp_path / "run").good()
    cpfl_command("run", "digits", *QUICK, "--set", "assignment.rule=label-balanced", "--out", tmp_path / "same").good()
    abouts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "same")]
    assert abouts[0]["cohorts"] == abouts[1]["cohorts"]
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

    def by(column: str) -> Experiment:
        return Experiment(**tree, assignment={"rule": "column", "rule_args": {"column": column}})

    given = {"train": (x, y, {"owner": owner, "region": region, "mixed": y}), "test": (x, y), "public": x}
    run = cpfl.run(by("region"), **given, out=tmp_path / "run")
    about = json.loads((run.path / "run.json").read_text())
    assert about["cohorts"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert about["assignment_reveals"].endswith("every single client's region.")
    with pytest.raises(cpfl.CpflError, match="'mixed' is not the same in all samples of a client"):
        cpfl.run(by("mixed"), **given, out=tmp_path / "no")
    with pytest.raises(cpfl.CpflError, match="no column of the training set; its columns: owner, region, mixed"):
        cpfl.run(by("city"), **given, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


class Alternating(cpfl.CohortAssignment):
    """Client after client to the next cohort; it sees what its argument names."""

    def __init__(self, names: str = "") -> None:
        self.needs = tuple(names.split())

    def assign(self, clients: ClientView, cohorts: int) -> Any:
        seen = {"labels": clients.labels, "seconds": clients.seconds, "column": clients.column}
        assert {name for name, value in seen.items() if value is not None} == set(self.needs)
        return [client % cohorts for client in range(clients.count)]


class Short(Alternating):
    def assign(self, clients: ClientView, cohorts: int) -> Any:
        return [0, 1, 2, 3]


class Empty(Alternating):
    def assign(self, clients: ClientView, cohorts: int) -> Any:
        return [0] * clients.count


class Broken(Alternating):
    def assign(self, clients: ClientView, cohorts: int) -> Any:
        raise RuntimeError("it is broken\nin two lines")


class Ragged(Alternating):
    def assign(self, clients: ClientView, cohorts: int) -> Any:
        return [[0, 1], [2]]


HERE = __name__


@pytest.mark.parametrize(
    ("needs", "message"),
    [("", ["nothing"]), ("labels", ["samples of each label"]), ("labels seconds", ["each label", "round takes"])],
)
def test_a_class_of_ones_own(cpfl_command: Command, tmp_path: Path, needs: str, message: list[str]) -> None:
    """It is shown what it names, and the run's record says so."""
    words = ("--set", f"assignment.rule={HERE}:Alternating", "--set", f"assignment.rule_args.names={needs}")
    cpfl_command("run", "digits", *QUICK, *words, "--out", "run").good()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["cohorts"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert all(text in about["assignment_reveals"] for text in message)
    assert ("round takes" in about["assignment_reveals"]) == ("seconds" in needs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"assignment.rule={HERE}:Short",), "Short' must give each of the 40 clients a cohort from 0 to 3"),
        ((f"assignment.rule={HERE}:Empty",), "and leave none empty"),
        ((f"assignment.rule={HERE}:Experiment",), "Experiment' is no subclass of cpfl.CohortAssignment"),
        ((f"assignment.rule={HERE}:Missing",), "Missing' cannot be loaded"),
        (
            (f"assignment.rule={HERE}:Alternating", "assignment.rule_args.nams=labels"),
            "rule_args.nams; did you mean names? known: na",
        ),
        (
            (f"assignment.rule={HERE}:Alternating", "assignment.rule_args.names=3"),
            "rule_args.names = 3 is not allowed: a text is",
        ),
        (
            (f"assignment.rule={HERE}:Broken",),
            f"assignment.rule = '{HERE}:Broken' cannot assign: it is broken",
        ),
        ((f"assignment.rule={HERE}:Ragged",), "Ragged' cannot assign: "),
        (
            (f"assignment.rule={HERE}:Alternating", "assignment.rule_args.names=label"),
            "needs ('label',): a tuple of labels, sec",
        ),
        (("assignment.rule_args.share=1",), "'random' does not take assignment.rule_args.share; it takes no arguments"),
    ],
)
def test_classes_that_assign_no_cohorts(
    cpfl_command: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    answer = cpfl_command("run", "digits", *(w for word in words for w in ("--set", word)), "--out", "run")
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "assignment.rule=sped"), "rule = 'sped' is unknown; did you mean speed? Known: random, speed"),
        (("--set", "assignment.rule=column"), "rule = 'column' needs assignment.rule_args.column; known: column"),
        (("--set", "assignment.rule=csv"), "rule = 'csv' needs assignment.rule_args.file; known: file"),
        (
            ("--set", "assignment.rule=csv", "--set", "assignment.rule_args.file=no.csv"),
            "'no.csv' cannot be read: No such file",
        ),
        (
            ("--set", "assignment.rule=column", "--set", "assignment.rule_args.column=x"),
            "no column of the training set",
        ),
        (
            ("--set", "assignment.rule=multi-objective", "--set", "assignment.rule_args.skew_weight=-1"),
            "assignment.rule_args.skew_weight = -1 is not allowed",
        ),
        (
            ("--set", "assignment.rule=multi-objective", "--set", "assignment.rule_args.skew_weight=0",
             "--set", "assignment.rule_args.speed_weight=0"),
            "needs rule_args.skew_weight or rule_args.speed_weight above 0",
        ),
        (("--cohorts", "1,x"), "--cohorts takes whole numbers"),
        (("--cohorts", "4,4"), "names a number twice"),
        (("--cohorts", "41"), "cohorts = 41 is more than clients = 40"),
        (("--out", "cohorts.jpg"), "cohorts.jpg is not allowed: a name that ends in svg, pdf, png, html, csv"),
        (("--out", "cohorts.csv", "--cohorts", "1,2"), "holds one assignment"),
    ],
)  # fmt: skip
def test_mistakes(cpfl_command: Command, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    answer = cpfl_command("cohorts", "digits", *words)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
