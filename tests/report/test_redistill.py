"""cpfl report --redistill: students of earlier moments, each distilled once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from small_runs import reseal
from torch import Tensor, nn

import cpfl
from cpfl.distillation import ensemble
from cpfl.distillation.ensemble import Chunks, logits_of
from cpfl.distillation.outputs import TeacherOutputs
from cpfl.reports.content import all_figures, content
from cpfl.runs.finding import find_runs
from cpfl.runs.folder import RunFolder
from cpfl.settings.types import hours
from cpfl.sweeps import redistill
from cpfl.sweeps.redistill import moments

if TYPE_CHECKING:
    from conftest import Command


def rows_of(tree: dict[str, Any], name: str) -> list[dict[str, Any]]:
    spec = next(figure["spec"] for figure in all_figures(tree) if figure["id"] == name)
    rows: list[dict[str, Any]] = spec["datasets"]["rows"]
    return rows


def done(runs: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in runs.glob("*/distillations/*/summary.json")}


def test_earlier_students_are_distilled_once_and_drawn(cpfl_command: Command, runs: Path) -> None:
    cpfl_command("report", "runs").good()
    assert "Not drawn yet: cpfl report DIR --redistill" in (runs / "report.html").read_text()
    first = cpfl_command("report", "runs", "--redistill").good()
    made = done(runs)
    assert made
    assert first.err.count("distilling") == len(made)
    second = cpfl_command("report", "runs", "--redistill").good()
    assert "distilling" not in second.err
    assert done(runs) == made
    tree = content(find_runs(runs))
    for name in ("quorum-accuracy", "quorum-hours", "time-budget"):
        assert (runs / "figures" / f"{name}.pdf").is_file()

    by_quorum = {(row["n"], row["quorum"]): row for row in rows_of(tree, "quorum-hours")}
    assert {quorum for n, quorum in by_quorum if n == 4} == {25, 50, 75, 100}
    ends = [sorted(c["hours"] for c in _summary(runs / f"n4-seed{seed}")["by_cohort"]) for seed in (90, 91)]
    for i, quorum in enumerate((25, 50, 75, 100)):  # of four cohorts, the i-th stop is when that quorum is reached
        assert by_quorum[4, quorum]["hours"] == pytest.approx(sum(end[i] for end in ends) / 2, rel=1e-3)

    later = [_summary(path.parent) for path in made if path.parts[-4] == "n2-seed90"]
    budgets = [row for row in rows_of(tree, "time-budget") if row["n"] == 2]
    both = {s["distillation"]["at"] for s in later if s["distillation"]["at"]}
    assert both, "there were moments before this run's end"
    other = {s["distillation"]["at"]: s for s in map(_summary, (runs / "n2-seed91" / "distillations").iterdir())}
    final = _summary(runs / "n2-seed91")
    for summary in later:
        at = summary["distillation"]["at"]
        if at and (at in other or hours(at) >= final["hours"]):
            accuracies = (summary["student_accuracy"], other.get(at, final)["student_accuracy"])
            row = next(row for row in budgets if row["hours"] == pytest.approx(hours(at)))
            assert row["accuracy"] == pytest.approx(sum(accuracies) / 2, rel=1e-3)


def test_what_the_user_has_distilled_is_drawn_and_not_done_again(runs: Path) -> None:
    cpfl.distill(runs / "n4-seed90", quorum=0.5)
    before = done(runs)
    made = cpfl.redistill([runs / "n4-seed90"])
    assert before.items() <= done(runs).items()
    assert not any("quorum-0.5" in path.name for path in made)
    assert any("quorum-0.25" in path.name for path in made)
    cpfl.distill(runs / "n2-seed90", quorum=0.5, weights="uniform", name="other")  # another recipe: not on these curves
    quorums = {(row["n"], row["quorum"]) for row in rows_of(content(find_runs(runs)), "quorum-accuracy")}
    assert (4, 50) in quorums
    assert (2, 50) not in quorums


@pytest.mark.parametrize("together", [1, 4])
def test_a_teacher_of_several_students_answers_once_and_they_are_the_same(
    together: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against each student by itself, also where students take turns as on a GPU: the same models, bit by bit, with
    fewer forward passes."""
    monkeypatch.setattr(redistill, "SIDE_BY_SIDE", {"cpu": together})
    monkeypatch.setattr(redistill, "MOST", 3)
    passes = Counter[str]()

    def counted(module: nn.Module, inputs: Chunks) -> Tensor:
        passes[stage] += inputs.key is not None
        return logits_of(module, inputs)

    monkeypatch.setattr(ensemble, "logits_of", counted)
    stage = "together"
    made = [_summary(path) for path in cpfl.redistill([runs / "n4-seed90"])]
    stage = "each alone"
    assert len(made) == 6
    for ours in made:
        own = ours["distillation"]
        moment = {"at": own["at"]} if own["at"] else {"quorum": own["quorum"]}
        theirs = cpfl.distill(runs / "n4-seed90", name="alone", **moment)
        for key in ("model_checksum", "student_accuracy", "by_cohort", "ensemble_accuracy"):
            assert ours[key] == theirs[key], key
    assert 0 < passes["together"] < 0.8 * passes["each alone"]


def test_a_student_that_fails_among_others_is_named_and_they_are_kept(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redistill, "SIDE_BY_SIDE", {"cpu": 10})
    monkeypatch.setattr(redistill, "MOST", 2)
    first, *others = redistill.missing(RunFolder.open(runs / "n4-seed90"))
    (runs / "n4-seed90" / "distillations" / "-".join(f"{k}-{v}" for k, v in first.items())).write_text("no folder")
    told: list[str] = []
    made = cpfl.redistill([runs / "n4-seed90", runs / "n2-seed90"], notify=told.append)
    assert len([path for path in made if "n4-seed90" in str(path)]) == len(others)
    assert [path for path in made if "n2-seed90" in str(path)]
    assert len([text for text in told if "n4-seed90 is not distilled again: " in text]) == 1


def test_outputs_of_the_last_distillation_are_kept_while_they_fit() -> None:
    outputs, made = TeacherOutputs(limit=100), list[str]()

    def ask(key: str) -> float:
        def compute() -> Tensor:
            made.append(key)
            return torch.full((5, 2), float(len(made)))  # 40 bytes

        return float(outputs.logits(key, compute).add_(100)[0, 0]) - 100  # who asks may write into it

    outputs.begin()
    assert [ask("a"), ask("b"), ask("c"), ask("a"), ask("c")] == [1, 2, 3, 1, 4]  # there is no room for c
    outputs.begin()
    assert [ask("b"), ask("d")] == [2, 5]
    outputs.begin()  # a was not used
    assert [ask("d"), ask("b"), ask("a")] == [6, 2, 7]


def test_what_cannot_be_distilled_again_is_named_and_left(cpfl_command: Command, runs: Path) -> None:
    path = runs / "n2-seed90" / "experiment.toml"
    path.write_text(path.read_text().replace('snapshots = "2 rounds"', 'snapshots = ""'))
    reseal(path.parent)
    (runs / "n4-seed90" / "summary.json").unlink()
    (runs / "n1-seed90" / "run.json").write_text("{")
    answer = cpfl_command("report", "runs", "--redistill").good()
    assert re.search(r"n2-seed90 is not distilled again: it kept no snapshots", answer.err)
    assert re.search(r"n4-seed90 is not distilled again: it is unfinished", answer.err)
    assert re.search(r"n1-seed90 is not distilled again: .*damaged", answer.err)
    assert {path.parts[-4] for path in done(runs)} == {"n1-seed91", "n2-seed91", "n4-seed91"}


def test_without_snapshots_the_page_says_what_to_do(cpfl_command: Command, runs: Path) -> None:
    for path in runs.glob("*/experiment.toml"):
        path.write_text(path.read_text().replace('snapshots = "2 rounds"', 'snapshots = ""'))
        reseal(path.parent)
    cpfl_command("report", "runs").good()
    assert "these runs kept no snapshots" in (runs / "report.html").read_text()


def test_moments_are_round_and_the_same_for_all() -> None:
    assert moments(5, 413) == [5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300]
    assert moments(0.25, 2.2) == [0.3, 0.5, 0.7, 1, 1.5, 2]
    assert moments(5, 59) == moments(5, 413)[:7]
    assert moments(5, 4) == []
    assert len(moments(0.001, 900)) == 12


def _summary(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return summary
