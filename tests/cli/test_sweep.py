"""cpfl sweep: what n costs and gains."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

import cpfl
from cpfl.cli.options import values
from cpfl.engines.ray import ClusterConfig
from cpfl.sweeps import SweepCallback, processes
from cpfl.sweeps.grid import SweepGrid, folder_name

if TYPE_CHECKING:  # there are several conftest modules: no import of it is sure to be this one
    from conftest import Command

QUICK = ("--set", "max_rounds=5", "--set", "distillation.epochs=2")
WORDS = ("sweep", "digits", *QUICK)
RECIPES = {"distillation.recipe": ["paper", "cpfl"]}


def written(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.glob("*/rounds/*.jsonl")}


def test_table_and_picture(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command(*WORDS, "--cohorts", "1,2,4", "--out", "s").good()
    runs = sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir())
    assert runs == ["n001-seed90", "n002-seed90", "n004-seed90"]
    summaries = [json.loads((tmp_path / "s" / run / "summary.json").read_text()) for run in runs]
    table = answer.out[answer.out.index("What n costs and gains") :]
    for summary in summaries:
        row = next(
            line for line in table.splitlines() if line.replace("│", " ").split()[:1] == [str(summary["cohorts"])]
        )
        assert f"{summary['student_accuracy']:.1f}" in row
        assert f"{summary['cpu_hours']:.1f}" in row
        assert f"{summaries[0]['hours'] / summary['hours']:.2f}×" in row
    with Image.open(tmp_path / "s" / "trade-off.png") as picture:
        assert picture.width > 500
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10  # not an empty page


def test_several_seeds_are_readable_in_a_pipe(cpfl_command: Command, tmp_path: Path) -> None:
    """No terminal, so no width: nothing may be cut off."""
    answer = cpfl_command(*WORDS, "--cohorts", "1,2", "--seeds", "90,91", "--out", "s").good()
    assert len(list((tmp_path / "s").glob("*/summary.json"))) == 4
    table = answer.out[answer.out.index("What n costs and gains") :]
    assert "…" not in table
    for word in ("teachers", "ensemble", "student", "hours", "traffic", "faster", "saved", "±", "over 2 seeds"):
        assert word in table
    means = [
        sum(json.loads((tmp_path / "s" / f"n{n:03d}-seed{s}" / "summary.json").read_text())["hours"] for s in (90, 91))
        for n in (1, 2)
    ]
    assert f"{means[0] / means[1]:.2f}×" in table


def test_a_repeated_call(cpfl_command: Command, tmp_path: Path) -> None:
    words = (*WORDS, "--cohorts", "1,2", "--out", "s", "--json")
    first = cpfl_command(*words).good().json
    assert sorted(run["cohorts"] for run in first["runs"]) == [1, 2]
    before = written(tmp_path / "s")
    assert len(before) == 3
    second = cpfl_command(*words, "--jobs", "2").good().json
    assert written(tmp_path / "s") == before
    assert sorted(run["wall_seconds"] for run in second["runs"]) == sorted(run["wall_seconds"] for run in first["runs"])
    assert second["by_cohorts"] == first["by_cohorts"]
    assert [row["cohorts"] for row in second["by_cohorts"]] == [1, 2]
    assert second["by_cohorts"][0]["speed_up"] == 1
    assert second["path"] == "s"


REPORTED = """
import os
from pathlib import Path
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        Path(f"{os.getpid()}.reported").write_text(os.environ.get("OMP_WAIT_POLICY", "unset"))
"""


@pytest.mark.parametrize(("chosen", "there"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_jobs_do_not_spin(
    chosen: str | None, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a thread sleeps, where several processes share the cores; a user's own choice stays."""
    (tmp_path / "reported.py").write_text(REPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(processes.WAIT_POLICY, raising=False)
    if chosen:
        monkeypatch.setenv(processes.WAIT_POLICY, chosen)
    experiment = cpfl.load_experiment("digits", [*QUICK[1::2], "model.name=reported:Net"])
    ends: list[Exception | None] = []
    common = {"device": "cpu", "workers": 1, "cluster": ClusterConfig(device="cpu")}
    processes.run_in_processes(
        {tmp_path / "run": experiment}, 1, common, SweepCallback(), lambda path, error: ends.append(error)
    )
    assert ends == [None]
    assert {path.read_text() for path in tmp_path.glob("*.reported")} == {there}
    assert os.environ.get(processes.WAIT_POLICY) == chosen  # only theirs was changed


def test_a_larger_sweep_includes_the_smaller(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "2", "--out", "s").good()
    before = written(tmp_path / "s")
    runs = cpfl_command(*WORDS, "--cohorts", "1,2", "--out", "s", "--json").good().json["runs"]
    assert [run["cohorts"] for run in runs] == [1, 2]
    assert before.items() <= written(tmp_path / "s").items()


def test_an_unfinished_run_of_the_sweep_is_resumed(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "2", "--out", "s").good()
    (tmp_path / "s" / "n002-seed90" / "summary.json").unlink()
    assert cpfl_command(*WORDS, "--cohorts", "2", "--out", "s", "--json").good().json["runs"][0]["cohorts"] == 2
    assert (tmp_path / "s" / "n002-seed90" / "summary.json").is_file()


def test_a_run_of_the_sweep_that_lost_its_facts(cpfl_command: Command, tmp_path: Path) -> None:
    """It cannot be resumed: moved away, it is run again."""
    cpfl_command(*WORDS, "--cohorts", "2", "--out", "s").good()
    run = tmp_path / "s" / "n002-seed90"
    (run / "run.json").unlink()
    answer = cpfl_command("resume", "s")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert "n002-seed90 exists and is not an empty folder: choose another folder, or move it away" in answer.err
    run.rename(tmp_path / "away")
    cpfl_command("resume", "s").good()


def test_other_settings_are_not_mixed_in(cpfl_command: Command, tmp_path: Path) -> None:
    cpfl_command(*WORDS, "--cohorts", "1", "--out", "s").good()
    before = written(tmp_path / "s")
    answer = cpfl_command(*WORDS, "--set", "data.alpha=1", "--cohorts", "1", "--out", "s")
    assert answer.code == 2
    assert "n001-seed90 holds a run with other settings" in answer.err
    assert written(tmp_path / "s") == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_diverges_does_not_take_the_others_down(cpfl_command: Command, tmp_path: Path, jobs: int) -> None:
    """Also from a process of its own, whose exceptions travel by pickle."""
    words = ("--cohorts", "2", "--over", "federation.lr=1e30,0.1,1e29", "--out", "s")
    answer = cpfl_command(*WORDS, *words, "--jobs", jobs)
    assert answer.code == 1
    failed = sorted(answer.err.splitlines())
    assert len(failed) == 2
    for line, value in zip(failed, ("1e+29", "1e+30"), strict=True):
        assert line.startswith(f"cpfl: n002-seed90-federation.lr-{value}: ")
        for word in ("cohort", "client", "round 1", "lower federation.lr"):
            assert word in line
    finished = [path.parent.name for path in (tmp_path / "s").glob("*/summary.json")]
    assert finished == ["n002-seed90-federation.lr-0.1"]
    assert "What n costs and gains, federation.lr = 0.1" in answer.out
    reported = cpfl_command(*WORDS, *words, "--json")
    assert reported.code == 1
    assert [Path(run["path"]).name for run in reported.json["runs"]] == finished
    assert len(reported.json["failed"]) == 2
    chosen = ("--set", "cohorts=2", "--set", "federation.lr=0.1")
    alone = cpfl_command("run", "digits", *QUICK, *chosen, "--out", "alone", "--json").good().json
    assert reported.json["runs"][0]["student_accuracy"] == alone["student_accuracy"]


def test_over_other_settings(cpfl_command: Command, tmp_path: Path) -> None:
    over = ("--over", "data.alpha=1,10", "--over", "federation.batch_size=40,20", "--over", "data.alpha=3")
    assert cpfl_command(*WORDS, *over).code == 2  # one key twice
    words = (*WORDS, "--cohorts", "1,2", *over[:4], "--out", "s", "--json")
    answer = cpfl_command(*words).good().json
    folders = sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir())
    expected = [
        f"n{n:03d}-seed90-data.alpha-{alpha}-federation.batch_size-{size}"
        for n in (1, 2)
        for alpha in (1, 10)
        for size in (20, 40)
    ]
    assert folders == sorted(expected)
    experiments = {run["path"]: cpfl.load_run(tmp_path / run["path"]).experiment for run in answer["runs"]}
    for run in answer["runs"]:
        chosen = experiments[run["path"]]
        alpha, size = chosen.data.alpha, chosen.federation.batch_size
        assert run["settings"] == {"data.alpha": alpha, "federation.batch_size": size}
        assert f"data.alpha-{alpha:g}-federation.batch_size-{size}" in run["path"]
    assert [(row["cohorts"], row["settings"]["federation.batch_size"]) for row in answer["by_cohorts"]][:2] == [
        (1, 40),
        (2, 40),
    ]
    assert len(list((tmp_path / "s").glob("trade-off-*.png"))) == 4
    before = written(tmp_path / "s")
    again = cpfl_command(
        *WORDS, "--cohorts", "2", "--over", "federation.batch_size=40", "--over", "data.alpha=1.0", "--out", "s"
    )
    assert "1 of 1 runs are finished already" in again.good().out
    assert written(tmp_path / "s") == before


def test_what_is_set_holds_for_every_recipe_and_server(cpfl_command: Command, tmp_path: Path) -> None:
    """What another recipe or server begins elsewhere stays as it was given; also when the sweep is resumed."""
    momentum, over = "federation.server_args.beta1=0.8", ("--over", "distillation.recipe=paper,cpfl")
    over += ("--over", "federation.server=fedadam,fedadagrad")
    cpfl_command(*WORDS, "--set", momentum, "--cohorts", "2", *over, "--out", "s").good()
    experiments = [cpfl.load_run(path.parent).experiment for path in (tmp_path / "s").glob("*/run.json")]
    assert len({(one.distillation.recipe, one.federation.server) for one in experiments}) == 4
    for one in experiments:
        assert (one.distillation.epochs, one.federation.server_args) == (2, {"beta1": 0.8})
        assert one.distillation.loss == {"paper": "l1", "cpfl": "kl"}[one.distillation.recipe]
    before = written(tmp_path / "s")
    cpfl_command("resume", "s").good()
    assert written(tmp_path / "s") == before
    larger = cpfl_command(*WORDS, "--set", momentum, "--cohorts", "1,2", *over, "--out", "s", "--json").good().json
    assert len(larger["runs"]) == 8
    assert before.items() <= written(tmp_path / "s").items()


@pytest.mark.parametrize("settings", [{"distillation.epochs": 7}, {"distillation": {"recipe": "paper", "epochs": 7}}])
def test_only_what_is_set_goes_with_another_recipe(settings: dict[str, Any]) -> None:
    base = cpfl.load_experiment("digits", ["distillation.lr=0.01", "distillation.epochs=7"])
    made = SweepGrid.from_values(base, None, None, RECIPES, settings)
    paper, ours = (made.experiment(name).distillation for name in made.runs)
    assert (paper.epochs, paper.lr) == (7, 0.01)
    assert (ours.epochs, ours.lr) == (7, 0.004)
    over = {"distillation.epochs": [3], "distillation.recipe": ["cpfl"]}
    varied = SweepGrid.from_values(base, None, None, over, settings)
    assert [varied.experiment(name).distillation.epochs for name in varied.runs] == [3]


def test_a_sweep_includes_no_run_with_other_settings(tmp_path: Path) -> None:
    """Whether a value was set or the experiment's own matters only where another recipe is taken."""
    base, given = cpfl.load_experiment("digits", ["distillation.epochs=7"]), {"distillation.epochs": 7}
    SweepGrid.from_values(base, [1], None, RECIPES).write(tmp_path)
    with pytest.raises(cpfl.CpflError, match=r"other settings \(distillation.epochs = 100\)"):
        SweepGrid.from_values(base, [2], None, RECIPES, given).merged(tmp_path)
    alone = SweepGrid.from_values(base, [2], None, {"distillation.recipe": ["paper"]})
    assert len(alone.merged(tmp_path).runs) == 3
    wide = cpfl.load_experiment("digits", ["distillation.epochs=7", "clients=80"])
    with pytest.raises(cpfl.CpflError, match=r"other settings \(clients = 40\)"):
        SweepGrid.from_values(wide, [60], None, {}).merged(tmp_path)


VALUES: dict[str, list[Any]] = {
    "data.mean": [[0.5], [0.4]],
    "model.args": [{"hidden": 8}, {"hidden": 16, "x": "a/b"}],
    "data.train": ["a/b", "a_b", "a,b", "../x", "", "é", "x" * 300, "1", "true"],
    "data.alpha": [0.1, 1, 1e-9, 1e9],
    "snapshots": ["5h", "50 rounds"],
}


@pytest.mark.parametrize("key", VALUES)
def test_folder_names_are_safe_unique_and_stable(key: str) -> None:
    names = [folder_name({"cohorts": 4, "seed": 90, key: value}) for value in VALUES[key]]
    assert len(set(names)) == len(names)
    assert names == [folder_name({key: value, "seed": 90, "cohorts": 4}) for value in VALUES[key]]
    for name in names:
        assert name.startswith(f"n004-seed90-{key}-")
        assert re.fullmatch(r"[A-Za-z0-9_.+=-]{1,140}", name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1,1", [0.1, 1]),
        ("iid, dirichlet", ["iid", "dirichlet"]),
        ("[0.5],[0.4, 0.3]", [[0.5], [0.4, 0.3]]),
        ("{hidden=8},{hidden=16}", [{"hidden": 8}, {"hidden": 16}]),
        ('"50 rounds","a,b"', ["50 rounds", "a,b"]),
        ("50 rounds,5h", ["50 rounds", "5h"]),
        ("true", [True]),
    ],
)
def test_lists_of_values(text: str, expected: list[Any]) -> None:
    assert values([f"k={text}"], "--over") == {"k": expected}


BAD = {
    ("--over", "data.alpha"): ("--over", "key=value,value"),
    ("--over", "data.alpha="): ("--over", "key=value,value"),
    ("--over", "data.alpa=1,2"): ("data.alpa", "data.alpha"),
    ("--over", "data.alpha=1,-1"): ("data.alpha = -1",),
    ("--over", "data.split=iid,column"): ("column",),
    ("--over", "model.name=mlp,nonsense"): ("nonsense",),
    ("--over", "data.train=digits,nowhere"): ("nowhere",),
    ("--over", "distillation.quorum=1,0.5"): ("distillation.quorum", "snapshots"),
    ("--cohorts", "2", "--over", "cohorts=1"): ("cohorts", "twice"),
    ("--engine", "steam", "--cohorts", "1"): ("engine", "steam"),
    ("--track", "paper", "--cohorts", "1"): ("track", "paper", "tensorboard"),
    (): ("cohorts", "seeds", "over"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_settings_are_found_before_the_first_run(
    cpfl_command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    answer = cpfl_command(*WORDS, *words, "--out", "s")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    for word in BAD[words]:
        assert word in answer.err
    assert not (tmp_path / "s").exists()


def test_another_experiment_is_not_mixed_in(cpfl_command: Command, tmp_path: Path) -> None:
    """Though their folders would have other names."""
    cpfl_command(*WORDS, "--cohorts", "1", "--out", "s").good()
    answer = cpfl_command(*WORDS, "--set", "data.alpha=1", "--cohorts", "2", "--out", "s")
    assert answer.code == 2
    assert "data.alpha = 0.5" in answer.err
    assert sorted(p.name for p in (tmp_path / "s").iterdir() if p.is_dir()) == ["n001-seed90"]
    run = cpfl_command(*WORDS, "--cohorts", "1", "--out", "s/n001-seed90")
    assert run.code == 2
    assert "is a run, not a sweep" in run.err


def test_resume_continues_the_whole_sweep(cpfl_command: Command, tmp_path: Path) -> None:
    first = cpfl_command(*WORDS, "--cohorts", "1,2", "--engine", "lanes", "--out", "s", "--json").good().json
    shutil.rmtree(tmp_path / "s" / "n001-seed90")  # as if it had never started
    (tmp_path / "s" / "n002-seed90" / "summary.json").unlink()
    again = cpfl_command("resume", "s", "--json").good().json
    for one, other in zip(first["runs"], again["runs"], strict=True):
        assert one["path"] == other["path"]
        assert one["engine"] == other["engine"] == "lanes"  # the sweep's, though auto would take another here
        assert other["student_accuracy"] == one["student_accuracy"]
    assert [run.path for run in cpfl.sweep(tmp_path / "s")] == [tmp_path / run["path"] for run in first["runs"]]
    with pytest.raises(cpfl.CpflError, match="takes no other settings"):
        cpfl.sweep(tmp_path / "s", cohorts=[4])


def test_a_sweep_over_arguments_that_the_experiment_does_not_set(cpfl_command: Command, tmp_path: Path) -> None:
    words = (*WORDS, "--set", "federation.server=fedadam", "--cohorts", "2", "--out", "s")
    first = cpfl_command(*words, "--over", "federation.server_args.tau=0.01,0.1", "--json").good().json["runs"]
    assert cpfl_command("resume", "s", "--json").good().json["runs"] == first
    more = cpfl_command(*words, "--over", "federation.server_args.tau=0.1,1", "--json").good().json["runs"]
    assert more[0] == first[1]
    assert len(cpfl_command("resume", "s", "--json").good().json["runs"]) == 3
    fixed = ("--set", "federation.server_args.tau=0.1", "--seeds", "1")
    answer = cpfl_command(*words, *fixed)
    assert answer.code == 2
    assert "other settings (federation.server_args = {})" in answer.err


def test_a_setting_must_have_an_effect_in_some_combination(cpfl_command: Command) -> None:
    rounds = ("--set", "stopping.rounds=3")
    words = ("sweep", "digits", "--set", "distillation.epochs=2", "--set", "max_rounds=5", *rounds, "--cohorts", "1")
    cpfl_command(*words, "--over", "stopping.rule=plateau,rounds", "--out", "s").good()
    answer = cpfl_command(*words, "--over", "stopping.rule=plateau,joint", "--out", "t")
    assert answer.code == 2
    assert "stopping.rounds has no effect" in answer.err
