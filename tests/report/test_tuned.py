"""The report of a tune: read from tune.json alone, also while it is written, and refused in one sentence if damaged."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.visits import IN_A_BROWSER, Visit, browser

import cpfl
from cpfl.reports.content import content
from cpfl.reports.tuned import split
from cpfl.runs.finding import find_runs

__all__ = ["browser"]  # a fixture
EVIL = "<img src=x onerror=alert(1)>"


def point(hours: float, accuracy: float) -> dict[str, float]:
    return {"hours": hours, "cpu_hours": 6 * hours, "traffic_gb": hours / 10, "accuracy": accuracy, "rounds": 10}


def trial(number: int, n: int, best: dict[str, float] | None, **more: Any) -> dict[str, Any]:
    settings = {"cohorts": n, "federation.deadline": 10 * number}
    own = {"number": number, "reference": "", "path": f"trials/{number:04d}", "state": "complete", "best": best}
    return own | {"settings": settings, "text": f"n = {n}, {EVIL}", "cohorts": n, "curve": [], "error": ""} | more


def outcome(who: str, number: int, accuracy: list[float], hours: float) -> dict[str, Any]:
    costs = {"hours": hours, "cpu_hours": 3 * hours, "traffic_gb": 0.2, "cost_of_target": None}
    return {"who": who, "trial": number, "seeds": [91, 92, 93], "accuracy": accuracy, "error": ""} | costs


TUNE: dict[str, Any] = {
    "schema": 1,
    "state": "finished",
    "name": "digits",
    "metric": "accuracy",
    "goal": {"maximise": "accuracy"},
    "limits": {"hours": 2.0, "cpu_hours": None, "traffic_gb": None, "accuracy": None},
    "trials_planned": 4,
    "space": [],
    "trials": [
        trial(0, 1, point(2, 63), reference="FedAvg"),
        trial(1, 4, point(0.5, 62)),
        trial(2, 4, None, state="failed", error=f"it failed: {EVIL}"),
        trial(3, 2, point(1, 40), state="pruned"),
    ],
    "front": {"hours": [point(0.5, 62), point(2, 63)], "cpu_hours": [point(0.5, 62)], "traffic_gb": []},
    "importances": [{"key": "cohorts", "share": 0.8}, {"key": "federation.deadline", "share": 0.2}],
    "finalists": [],
    "recommendation": {"trial": 1, "settings": {}, "text": "n = 4", "file": "recommended.toml", "cohorts": 4},
    "paragraph": "Cohorts pay for this fleet.",
    "tests": [outcome("recommended", 1, [61, 62, 63], 0.5), outcome("FedAvg", 0, [62, 62, 64], 2)],
}


def write(folder: Path, tree: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tune.json").write_text(json.dumps(tree))
    return folder


def test_what_a_tune_found(tmp_path: Path) -> None:
    tree = content([], tunes=[write(tmp_path / "my tune", TUNE)])
    tune = tree["tunes"][0]
    assert [one["id"] for one in tune["figures"]] == ["tune-front-hours", "tune-front-cpu-hours", "tune-importance"]
    assert tune["figures"][0]["finding"] == "The best trial has 63.0 % after 2.00 virtual hours"
    assert tune["figures"][2]["finding"].startswith("cohorts matters most: 80 %")
    assert [row["cells"][0] for row in tune["trials"]] == ["63.00", "62.00", "–", "40.00"]
    tests, trials = tree["advice"]
    assert (
        tests["headline"] == "recommended, n = 4 ends 4.0× sooner than FedAvg, n = 1 and loses 0.7 points of accuracy"
    )
    assert tests["evidence"].startswith("faster in 3 of 3 seeds")
    assert shlex.split(tests["next"]) == ["cpfl", "run", f"{tmp_path}/my tune/recommended.toml"]
    assert [one["name"] for one in trials["candidates"]] == ["FedAvg, n = 1", "trial 1, n = 4"]  # complete ones
    explorer = tree["explorers"][1]
    assert explorer["metric"] == "validation accuracy"
    assert explorer["candidates"][1]["settings"] == {"cohorts": "4", "federation.deadline": "10"}


def test_its_runs_are_no_experiments_of_the_report(tmp_path: Path, made: Path) -> None:
    folder = write(tmp_path / "tune", TUNE)
    shutil.copytree(made / "n1-seed90", folder / "trials" / "0000")
    shutil.copytree(made / "n2-seed90", tmp_path / "other")
    tunes, runs = split([tmp_path], find_runs(tmp_path))
    assert (tunes, runs) == ([folder], [tmp_path / "other"])


@pytest.mark.parametrize(
    "damage",
    [
        {"trials": [{"number": 1}]},
        {"front": 3},
        {"importances": [{"key": "cohorts", "share": "much"}]},
        {"tests": [outcome("x", 0, ["no"], 1)]},  # type: ignore[list-item]
    ],
)
def test_a_damaged_tune_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    tree = content([], tunes=[write(tmp_path / "tune", TUNE | damage)])
    assert tree["tunes"] == []
    assert "tune.json" in tree["damaged"][0]["reason"]


def test_one_that_has_only_begun(tmp_path: Path) -> None:
    begun: dict[str, Any] = {key: [] for key in ("trials", "importances", "finalists", "tests")}
    begun |= {"state": "searching", "recommendation": None, "paragraph": "", "front": {}}
    tree = content([], tunes=[write(tmp_path / "tune", TUNE | begun)])
    assert tree["advice"] == []
    assert tree["tunes"][0]["figures"] == []


class TestPage:
    pytestmark = IN_A_BROWSER

    @pytest.mark.parametrize("width", [1280, 390])
    def test_is_drawn_and_its_texts_cannot_act(self, browser: Any, tmp_path: Path, made: Path, width: int) -> None:
        folder = write(tmp_path / "tune", TUNE)
        shutil.copytree(made / "n1-seed90", folder / "trials" / "0000")
        with Visit(browser, cpfl.report(folder).page.as_uri(), width) as visit:
            page = visit.page
            assert page.inner_text("h1") == "Tune of digits: n = 4"
            assert page.locator("#tune [data-figure] svg").count() == 3
            assert EVIL in page.inner_text("#tune")
            assert page.locator("[data-explorer]").count() == 2
            page.locator("details.compare summary").last.click()
            shown = page.inner_text("[data-compare='1']")
            assert "federation.deadline\t0\t10" in shown
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert visit.complaints == []
