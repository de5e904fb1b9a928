"""A whole tune from Python and from the command line: what it leaves, what it refuses, and how it continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tune.small_tunes import SEARCH, SETTINGS, TUNE

import cpfl
from cpfl.cli import tune as command
from cpfl.errors import CpflError, RunFolderError, SettingError
from cpfl.runs import files
from cpfl.runs.folder import RunFolder
from cpfl.sweeps import SweepCallback
from cpfl.tuning import finalists, resume
from cpfl.tuning.goal import Goal, Point
from cpfl.tuning.result import Trial, read


class Messages(SweepCallback):
    """What a tune says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> cpfl.TuneResult:
    """A finished tune, only for reading."""
    return cpfl.tune("digits", out=tmp_path_factory.mktemp("tune") / "t", **TUNE)


def test_every_trial_is_a_record_with_its_curve(found: cpfl.TuneResult) -> None:
    tree = found.tree
    assert tree["state"] == "finished"
    assert tree["goal"] == {"maximise": "accuracy"}
    assert tree["limits"] == {"hours": 0.03, "cpu_hours": None, "traffic_gb": None, "accuracy": None}
    names = [trial["reference"] for trial in found.trials]
    assert names[:4] == ["FedAvg", "FedAvgM", "FedAvgM with a deadline", ""]
    runs = [trial for trial in found.trials if trial["state"] in ("complete", "pruned")]
    assert len(runs) == tree["trials_planned"] == 6
    for trial in runs:
        assert RunFolder.open(found.path / trial["path"]).summary() is None or trial["cohorts"]  # only trained
        assert [point["hours"] for point in trial["curve"]] == sorted(point["hours"] for point in trial["curve"])
        assert trial["best"] in trial["curve"]
        assert all(point["hours"] <= 0.03 + 1e-9 for point in trial["curve"])
    assert {trial["cohorts"] for trial in runs} == {1, 2}
    best = max(point["accuracy"] for trial in runs for point in trial["curve"])
    for cost in ("hours", "cpu_hours", "traffic_gb"):
        assert tree["front"][cost][-1]["accuracy"] == best
    assert sum(one["share"] for one in tree["importances"]) == pytest.approx(1)


def test_finalists_have_their_final_models(found: cpfl.TuneResult) -> None:
    trials = {trial["number"]: trial for trial in found.trials}
    assert 1 <= len(found.finalists) <= 5
    for one in found.finalists:
        trial = trials[one["trial"]]
        meets = trial["settings"].get("meetings.rule", "none") != "none"
        wanted = "cohort model" if trial["cohorts"] == 1 else "merged model" if meets else "student"
        assert one["result"] == wanted
        results = found.path / trial["path"] / "distillations" / "tune"
        assert results.is_dir() == (wanted == "student")
        if wanted == "student":  # by its clients' own validation samples
            held = json.loads((results / "clients.json").read_text())["clients"]
            right = sum(c["accuracy_held_back"] * c["held_back"] for c in held if c["held_back"])
            assert one["accuracy"] == pytest.approx(right / sum(c["held_back"] for c in held))
        else:
            assert one["accuracy"] == one["ensemble"] == one["point"]["accuracy"]
    assert any(trials[one["trial"]]["cohorts"] == 1 for one in found.finalists)


def test_the_recommended_experiment_runs_as_it_is(found: cpfl.TuneResult, tmp_path: Path) -> None:
    tree = found.tree
    run = cpfl.run(found.recommended, out=tmp_path / "run", device="cpu", engine="reference")
    own = tree["recommendation"]
    assert run.summary["cohorts"] == own["cohorts"]
    assert run.summary["hours"] <= 0.03
    for key, value in own["settings"].items():
        if "_args." not in key and key != "cohorts":
            section, leaf = key.split(".")
            assert getattr(getattr(run.experiment, section), leaf) == value
    assert own["cohorts_pay"] == (own["cohorts"] > 1)
    assert found.paragraph == tree["paragraph"]
    assert ("do not pay" in found.paragraph) == (own["cohorts"] == 1)


def test_fresh_seeds_are_tested_once(found: cpfl.TuneResult) -> None:
    names = [one["who"] for one in found.tests]
    assert names == ["recommended", "FedAvg", "FedAvgM", "FedAvgM with a deadline"]
    for one in found.tests:
        assert one["seeds"] == [91]
        assert len(one["accuracy"]) == 1
        assert one["mean"] == one["accuracy"][0]
    paths = sorted((found.path / "tests").glob("*/summary.json"))
    assert {json.loads(path.read_text())["seed"] for path in paths} == {91}
    trials = [path.parent for path in found.path.glob("trials/*/summary.json")]
    assert trials == []  # no trial was distilled at its end or looked at a test sample


def test_the_same_again_has_nothing_to_do(found: cpfl.TuneResult) -> None:
    before = {path: path.stat().st_mtime_ns for path in found.path.rglob("*")}
    assert cpfl.tune("digits", out=found.path, **TUNE) == found
    assert {path: path.stat().st_mtime_ns for path in found.path.rglob("*")} == before


def test_another_tune_in_the_same_folder_is_refused(found: cpfl.TuneResult, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"holds a tune with other settings \(limits.hours = 0.03\)"):
        cpfl.tune("digits", out=found.path, **{**TUNE, "hours": 0.06})
    with pytest.raises(RunFolderError, match="exists and holds no tune"):
        cpfl.tune("digits", out=found.path / "trials" / "0000", **TUNE)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(found.path / "tune.json", copy)
    changed = json.loads((copy / "tune.json").read_text())
    (copy / "tune.json").write_text(json.dumps({**changed, "paragraph": "cohorts always pay"}))
    with pytest.raises(RunFolderError, match="was changed after it was written"):
        read(copy)


def test_two_tunes_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "t"
    (out / "trials").mkdir(parents=True)
    folder = RunFolder(out)
    folder.lock("tuned")
    try:
        with pytest.raises(RunFolderError, match="is being tuned by another process"):
            cpfl.tune("digits", out=out, **TUNE)
    finally:
        folder.unlock()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"hours": 1e-6}, r"hours = 1e-06 is impossible: the cheapest round of a cohort takes .* hours \(with cohorts"),
        ({"cpu_hours": 1e-9}, "cpu_hours = 1e-09 is impossible: the cheapest round"),
        ({"traffic": 1e-9}, "traffic = 1e-09 is impossible"),
        ({"search": {"federation.participation": "0.1..2"}}, "is outside of what federation.participation takes"),
        ({"search": {"cohorts": [7]}}, "cohorts = 7 is more than clients = 6"),
        ({"settings": SETTINGS | {"data.validation": 0}}, "compares trials on validation samples"),
        ({"trials": 0}, "trials = 0 is not allowed"),
        ({"hours": None}, "a goal is missing"),
    ],
)
def test_what_is_refused_before_the_first_run(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=sentence):
        cpfl.tune("digits", out=tmp_path / "t", **{**TUNE, **given})
    assert not (tmp_path / "t").exists()


def test_a_failed_trial_is_a_record(tmp_path: Path) -> None:
    """A rate at which training diverges: the other trials continue."""
    search = {"federation.lr": [1e29], "cohorts": [1], "federation.server": ["mean"]}
    said = Messages()
    settings = {key: value for key, value in SETTINGS.items() if key != "federation.lr"} | {"federation.deadline": 0}
    given = {**TUNE, "search": search, "settings": settings, "trials": 4, "seeds": 0, "callback": said}
    result = cpfl.tune("digits", out=tmp_path / "t", **given)
    failed = [trial for trial in result.trials if trial["state"] == "failed"]
    assert failed
    assert all("federation.lr" in trial["error"] for trial in failed)
    assert not any(trial["reference"] for trial in failed)
    assert any("failed" in line for line in said.lines)
    assert result.tests == []
    late = next(trial for trial in result.trials if trial["reference"].endswith("deadline"))
    assert late["state"] == "complete"  # it is shown
    assert late["number"] not in [one["trial"] for one in result.finalists]  # it contradicts what is fixed
    assert result.tree["recommendation"] is not None


def test_a_goal_that_nobody_reaches_is_said(tmp_path: Path) -> None:
    given = {**TUNE, "trials": 3, "accuracy": 99.9, "hours": 0.02, "seeds": 0}
    result = cpfl.tune("digits", out=tmp_path / "t", **given)
    assert result.paragraph.startswith("No trial reaches the goal: the fewest CPU hours to 99.9 % within 0.02 hours.")
    assert result.tree["recommendation"] is None
    assert not result.recommended.exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cpfl tune digits --accuracy 15 --minimise cpu --trials 4`, and its JSON when it is repeated."""
    settings = [f"{key}={value}" for key, value in (SETTINGS | {"max_rounds": 12}).items()]
    space = tmp_path / "space.toml"
    space.write_text(f"[search]\ncohorts = [1, 2]\n[fixed]\nname = {json.dumps('mine')}\n")
    search = ["federation.local_epochs=1..3", "federation.server=mean,fedavgm"]
    given: dict[str, Any] = {
        "accuracy": 15.0, "minimise": "cpu", "trials": 4, "points": 6, "seeds": 1, "settings": settings,
        "search": search, "space": space, "out": tmp_path / "t", "engine": "reference", "device": "cpu",
    }  # fmt: skip
    command.tune("digits", **given)
    out = capsys.readouterr().out
    assert "finalists" in out
    assert "recommended: cpfl run" in out
    command.tune("digits", **given, as_json=True)
    tree = json.loads(capsys.readouterr().out)
    assert tree["name"] == "mine"
    assert tree["goal"] == {"minimise": "cpu_hours"}
    assert {one["key"] for one in tree["space"]} >= {"cohorts", "federation.local_epochs"}
    with pytest.raises(CpflError, match="--search takes KEY=A,B"):
        command.tune("digits", hours=1.0, search=["cohorts"])


def entry(number: int, accuracy: float) -> dict[str, Any]:
    return {"trial": number, "accuracy": accuracy, "point": vars(Point(1, 2, 3, accuracy, 4, 1))}


@pytest.mark.parametrize(("single", "pays"), [(69.0, True), (69.7, False), (75.0, False)])
def test_the_simpler_settings_are_recommended_where_they_are_as_good(single: float, pays: bool) -> None:
    trials = {0: Trial(0, {"cohorts": 1}, state="complete"), 5: Trial(5, {"cohorts": 4}, state="complete")}
    both = [entry(0, single), entry(5, 70.0)]
    chosen = finalists.recommend(both, trials, Goal(hours=2))
    assert (chosen["trial"] == 5) == pays
    text = finalists.paragraph(chosen, both, trials, Goal(hours=2), [], "accuracy")
    assert text.startswith("Cohorts pay" if pays else "Cohorts do not pay")
    assert f"{single:.1f} %" in text
    assert "70.0 %" in text


def test_fresh_seeds_may_contradict() -> None:
    trials = {0: Trial(0, {"cohorts": 1}, state="complete"), 5: Trial(5, {"cohorts": 4}, state="complete")}
    both = [entry(0, 60.0), entry(5, 70.0)]
    costs = {"hours": 1.0, "cpu_hours": 2.0, "traffic_gb": 3.0, "allowed": True}
    tests = [
        {"who": "recommended", "trial": 5, "seeds": [1, 2], "mean": 50.0, "std": 1.0, **costs},
        {"who": "FedAvg", "trial": 0, "seeds": [1, 2], "mean": 60.0, "std": 1.0, **costs},
    ]
    text = finalists.paragraph(both[1], both, trials, Goal(hours=2), tests, "accuracy")
    assert "contradict the recommendation: consider FedAvg" in text
    tests[1]["allowed"] = False  # it contradicts what is fixed
    assert "FedAvg" not in finalists.paragraph(both[1], both, trials, Goal(hours=2), tests, "accuracy")


def test_the_journal_is_optunas(found: cpfl.TuneResult) -> None:
    optuna = pytest.importorskip("optuna")
    path = str(found.path / "journal.log")
    backend = optuna.storages.journal.JournalFileBackend(path)
    study = optuna.load_study(study_name="tune", storage=optuna.storages.JournalStorage(backend))
    values = {t.user_attrs["number"]: t.value for t in study.trials if t.value is not None}
    told = {trial["number"]: trial["value"] for trial in found.trials if trial["state"] in ("complete", "pruned")}
    told |= {trial["number"]: told[trial["same_as"]] for trial in found.trials if trial["state"] == "repeated"}
    assert values.items() <= told.items()
    assert len(values) >= 3
    assert SEARCH.keys() <= {key for trial in study.trials for key in trial.params}
    assert files.read_json(found.path / "tune.json")["checksum"]


def test_own_data_and_an_own_fleet_that_can_be_deployed(tmp_path: Path) -> None:
    """Arrays from Python, devices from a csv that come and go; what a deployed fleet cannot follow is not searched."""
    fleet = tmp_path / "fleet.csv"
    lines = [f"{client},{speed},5000" for client, speed in enumerate([5, 5, 5, 20, 20, 60])]
    fleet.write_text("\n".join(["client_id,computation_ms_per_sample,communication_kbps", *lines]) + "\n")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    images = (rng.normal(size=(400, 1, 8, 8)) + labels[:, None, None, None]).astype(np.float32)
    arrays = {"train": (images[:300], labels[:300]), "test": (images[300:], labels[300:]), "public": images[:60]}
    settings = {key: value for key, value in SETTINGS.items() if not key.endswith("_limit")} | {
        "devices.trace": str(fleet),
        "devices.availability": "synthetic",
        "devices.online_hours": 0.01,
        "devices.offline_hours": 0.01,
        "federation.deadline": 0,
    }
    given = {**TUNE, "settings": settings, "trials": 5, "seeds": 1, **arrays}
    result = cpfl.tune("digits", out=tmp_path / "t", **given)
    runs = [trial for trial in result.trials if trial["state"] in ("complete", "pruned")]
    assert {trial["cohorts"] for trial in runs} == {1, 2}
    assert len({point["accuracy"] for trial in runs for point in trial["curve"]}) > 3
    assert result.tests[0]["mean"] > 40  # of three classes that differ clearly
    with pytest.raises(RunFolderError, match="was started from Python with train = …"):
        resume(result.path)
    assert resume(result.path, **{**arrays, "device": "cpu"}) == result
    run_config = pytest.importorskip("cpfl.deploy.run_config", exc_type=ImportError)
    with pytest.raises(SettingError, match=r"devices.availability = 'synthetic' is for simulations"):
        run_config.read(result.recommended, {})
    deployed, _ = run_config.read(result.recommended, {"set": "devices.availability=always"})
    assert deployed.cohorts == result.tree["recommendation"]["cohorts"]
    assert deployed.stopping.rule == "budget"
