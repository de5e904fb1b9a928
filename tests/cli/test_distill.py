"""cpfl distill: the same cohorts, asked again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

from cpfl.terminal import RunView

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")


BRIEF = ("--set", "distillation.epochs=1")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def open_run(unfinished: Path, tmp_path: Path) -> Path:
    shutil.copytree(unfinished, tmp_path / "open")
    return tmp_path / "open"


def rounds(path: Path) -> list[list[dict[str, float]]]:
    files = sorted((path / "rounds").glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and "distillations" not in file.relative_to(path).parts
    }


def test_what_a_second_distillation_leaves(cpfl_command: Command, run: Path) -> None:
    before = contents(run)
    answer = cpfl_command("distill", "run", "--weights", "uniform", *BRIEF).good()
    assert contents(run) == before
    (new,) = (run / "distillations").iterdir()
    assert "uniform" in new.name
    assert {file.name for file in new.iterdir()} == {"summary.json", "epochs.jsonl", "clients.json", "models"}
    summary = json.loads((new / "summary.json").read_text())
    assert summary["distillation"]["weights"] == "uniform"
    assert f"{summary['student_accuracy']:.2f} % on the test set" in answer.out
    assert str(new.relative_to(run.parent)) in answer.out
    cpfl_command("distill", "run", "--aggregation", "probabilities", *BRIEF).good()
    assert len(list((run / "distillations").iterdir())) == 2


def test_the_same_again_is_the_same(cpfl_command: Command, run: Path) -> None:
    cpfl_command("distill", "run", "--name", "again").good()
    first, second = (load_file(p / "models" / "global.safetensors") for p in (run, run / "distillations" / "again"))
    assert all(first[name].equal(second[name]) for name in first)


def test_at_a_virtual_time(cpfl_command: Command, run: Path) -> None:
    """By hand: who had stopped teaches as it ended, the others as their latest snapshot before that moment was."""
    clocks = [[record["clock"] for record in cohort] for cohort in rounds(run)]
    moment = sorted(cohort[-1] for cohort in clocks)[1]  # two of four have stopped
    summary = cpfl_command("distill", "run", "--at", f"{moment + 0.5:.3f}s", *BRIEF, "--json").good().json
    assert summary["hours"] == pytest.approx((moment + 0.5) / 3600, abs=1e-6)
    done = [record for cohort in rounds(run) for record in cohort if record["clock"] <= moment + 0.5]
    assert summary["rounds"] == len(done) < 20
    assert summary["cpu_hours"] == pytest.approx(sum(record["cpu_seconds"] for record in done) / 3600)
    assert summary["teachers"] == [0, 1, 2, 3]
    full = json.loads((run / "summary.json").read_text())["by_cohort"]
    stopped = [i for i in range(4) if clocks[i][-1] <= moment]
    assert len(stopped) == 2
    assert all(summary["by_cohort"][i] == full[i] for i in stopped)


def test_at_zero_everybody_is_the_start(cpfl_command: Command, run: Path) -> None:
    summary = cpfl_command("distill", "run", "--at", "0h", *BRIEF, "--json").good().json
    assert summary["rounds"] == 0
    assert len({row["accuracy"] for row in summary["by_cohort"]}) == 1


def test_a_time_after_the_end_is_the_end(cpfl_command: Command, run: Path) -> None:
    """Nothing happened after the last cohort stopped, so it took no longer than that."""
    full = json.loads((run / "summary.json").read_text())
    summary = cpfl_command("distill", "run", "--at", "100h", "--json").good().json
    assert summary["student_accuracy"] == full["student_accuracy"]
    assert summary["hours"] == full["hours"]


def test_quorum(cpfl_command: Command, run: Path) -> None:
    stops = sorted(cohort[-1]["clock"] for cohort in rounds(run))
    summary = cpfl_command("distill", "run", "--quorum", "0.75", *BRIEF, "--json").good().json
    assert summary["hours"] == pytest.approx(stops[2] / 3600)
    assert summary["teachers"] == [0, 1, 2, 3]
    dropped = cpfl_command("distill", "run", "--quorum", "0.75", "--unfinished", "drop", *BRIEF, "--json").good().json
    assert len(dropped["teachers"]) == 3
    assert len(dropped["by_cohort"]) == 3
    assert len(list((run / "distillations").iterdir())) == 2


def test_another_moment_than_the_runs_own(cpfl_command: Command) -> None:
    """What is given now stands in place of the run's own quorum or time, of which there can be only one."""

    def ask(path: str, *words: str) -> tuple[str, float]:
        chosen = cpfl_command("distill", path, *words, *BRIEF, "--json").good().json["distillation"]
        return chosen["at"], chosen["quorum"]

    for name, own in (("quorum", "distillation.quorum=0.75"), ("at", "distillation.at=100s")):
        cpfl_command("run", "digits", *QUICK, "--set", "snapshots=2 rounds", "--set", own, "--out", name).good()
    assert ask("quorum") == ("", 0.75)
    assert ask("quorum", "--at", "0.01h") == ask("quorum", "--set", "distillation.at=0.01h") == ("0.01h", 1)
    assert ask("quorum", "--quorum", "0.5") == ("", 0.5)
    assert ask("at") == ("100s", 1)
    assert ask("at", "--quorum", "0.5") == ("", 0.5)
    assert ask("at", "--quorum", "1") == ("", 1)
    for path in ("quorum", "at"):
        answer = cpfl_command("distill", path, "--at", "50s", "--quorum", "0.5")
        assert answer.code == 2
        assert "at and quorum exclude each other" in answer.err


def test_weights_aggregation_and_recipe_change_the_ensemble(cpfl_command: Command, run: Path) -> None:
    def ask(*words: str) -> dict[str, Any]:
        answer: dict[str, Any] = cpfl_command("distill", "run", *words, *BRIEF, "--json").good().json
        return answer

    plain = ask()
    uniform, probabilities = ask("--weights", "uniform"), ask("--aggregation", "probabilities")
    both = ask("--weights", "uniform", "--aggregation", "probabilities", "--set", "distillation.loss=kl")
    outcomes = [plain, uniform, probabilities, both]
    assert len({outcome["ensemble_accuracy"] for outcome in outcomes}) > 2
    assert len({tuple(row["accuracy"] for row in outcome["by_cohort"]) for outcome in outcomes}) == 1
    for idle in ("same_views=true", "views=3"):  # digits are not augmented: one view
        refused = cpfl_command("distill", "run", "--set", f"distillation.{idle}")
        assert refused.code == 2
        assert f"distillation.{idle.partition('=')[0]} has no effect here" in refused.err
    other = ask("--recipe", "cpfl")
    assert other["distillation"]["loss"] == "kl"
    assert other["student_accuracy"] != plain["student_accuracy"]


@pytest.mark.parametrize("words", [("--recipe", "cpfl"), ("--set", "distillation.recipe=cpfl")])
def test_progress_counts_the_epochs_of_another_recipe(
    cpfl_command: Command, run: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(RunView, "quiet_seconds", -1.0)  # a line for every epoch
    answer = cpfl_command("distill", "run", *words, "--set", "distillation.batch_size=4096").good()
    reported = [line for line in answer.out.splitlines() if line.startswith("distill: epoch ")]
    assert reported[0].startswith("distill: epoch 1 of 100 ")
    assert reported[-1].startswith("distill: epoch 100 of 100 ")


def test_another_student(cpfl_command: Command, run: Path, tmp_path: Path) -> None:
    summary = cpfl_command("distill", "run", "--student", "femnist-cnn", *BRIEF, "--name", "cnn", "--json").good().json
    assert summary["distillation"]["student"] == "femnist-cnn"
    student = load_file(run / "distillations" / "cnn" / "models" / "global.safetensors")
    assert student["0.weight"].shape == (32, 1, 5, 5)
    cpfl_command("export", "run", "--distillation", "cnn", "--out", "exported", "--no-onnx").good()
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(exported[name].equal(student[name]) for name in student)


def test_another_student_of_a_single_teacher(cpfl_command: Command, run: Path) -> None:
    """One teacher is left: whatever the global model then is, it can be exported."""
    words = ("--quorum", "0.25", "--unfinished", "drop", "--student", "femnist-cnn", "--name", "single")
    cpfl_command("distill", "run", *words, *BRIEF).good()
    cpfl_command("export", "run", "--distillation", "single", "--out", "exported", "--no-onnx").good()


def test_a_student_for_a_run_with_one_cohort(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command("run", "digits", *QUICK, "--set", "cohorts=1", "--out", "one").good()
    summary = cpfl_command("distill", "one", "--json").good().json
    assert (
        summary["student_accuracy"] == json.loads((tmp_path / "one" / "summary.json").read_text())["student_accuracy"]
    )


def test_names_stay_inside(cpfl_command: Command, run: Path) -> None:
    """A name is a name, never a way out of the folder of distillations."""
    before = contents(run)
    for name in ("..", ".", "../../other", "a/b"):
        cpfl_command("distill", "run", "--name", name, *BRIEF)
        assert contents(run) == before, name
        assert {path.name for path in run.parent.iterdir()} == {"run"}, name
        assert all(path.is_dir() for path in (run / "distillations").iterdir()), name


def test_an_unfinished_run_early_on(cpfl_command: Command, open_run: Path) -> None:
    before = contents(open_run)
    last = min(cohort[-1]["clock"] for cohort in rounds(open_run))
    summary = cpfl_command("distill", "open", "--at", f"{last * 0.9:.3f}s", *BRIEF, "--json").good().json
    assert summary["teachers"] == [0, 1, 2, 3]
    assert summary["rounds"] >= 1
    assert contents(open_run) == before
    assert not (open_run / "summary.json").exists()


def test_an_unfinished_run_too_late(cpfl_command: Command, open_run: Path) -> None:
    for words, expected in (
        ((), "4 are needed"),
        (("--at", "5h"), "does not exist yet"),
        (("--quorum", "1"), "4 are needed"),
    ):
        answer = cpfl_command("distill", "open", *words)
        assert answer.code == 2
        assert expected in answer.err
        assert len(answer.err.splitlines()) == 1
    assert list((open_run / "distillations").iterdir()) == []


def test_the_unfinished_run_still_ends_as_it_would_have(cpfl_command: Command, open_run: Path, finished: Path) -> None:
    cpfl_command("distill", "open", "--at", "10s", *BRIEF).good()
    cpfl_command("resume", "open").good()
    assert rounds(open_run) == rounds(finished)
    mine, theirs = (json.loads((path / "summary.json").read_text()) for path in (open_run, finished))
    for key in ("student_accuracy", "ensemble_accuracy", "by_cohort", "hours", "cpu_hours", "comm_gb"):
        assert mine[key] == theirs[key]


def test_without_snapshots_it_says_what_is_gone(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command("run", "digits", *QUICK, "--out", "bare").good()
    answer = cpfl_command("distill", "bare", "--at", "30s")
    assert answer.code == 2
    assert "snapshots" in answer.err
    assert list((tmp_path / "bare" / "distillations").iterdir()) == []


@pytest.mark.parametrize("choice", ["distillation.at=20s", "distillation.quorum=0.5"])
def test_a_run_that_could_never_be_distilled_is_refused_before_it_trains(
    cpfl_command: Command, tmp_path: Path, choice: str
) -> None:
    """Without snapshots the models it asks for will be gone: refused now, not after hours of training."""
    answer = cpfl_command("run", "digits", *QUICK, "--set", choice, "--out", "here")
    assert answer.code == 2
    assert "snapshots" in answer.err
    assert not (tmp_path / "here").exists()


def test_a_run_distilled_at_a_time(cpfl_command: Command) -> None:
    words = ("--set", "distillation.at=100s", "--set", "snapshots=1 rounds", "--out", "here", "--json")
    assert cpfl_command("run", "digits", *QUICK, *words).good().json["hours"] == pytest.approx(100 / 3600)
