"""The board of a tune: its trials by state, planned ones too, and the best so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpfl.dashboard.dashboard import Dashboard

EVIL = "<img src=x onerror=alert(1)>"
POINT = {"hours": 2.0, "cpu_hours": 12.2, "traffic_gb": 0.2, "accuracy": 63.0, "rounds": 60}


def trial(number: int, state: str, **changes: Any) -> dict[str, Any]:
    facts = {"number": number, "reference": "", "path": f"trials/{number:04d}", "state": state, "cohorts": 4}
    facts |= {"settings": {"cohorts": 4}, "text": "n = 4", "curve": [POINT], "best": POINT, "value": 63.0}
    return {**facts, "feasible": True, "error": "", "same_as": None, **changes}


def searching() -> dict[str, Any]:
    worse, better = POINT | {"accuracy": 31.0}, POINT | {"accuracy": 70.0}
    trials = [
        trial(0, "complete", reference="FedAvg"),
        trial(1, "pruned", best=worse, value=31.0, text=EVIL),
        trial(2, "failed", best=None, value=None, error="the loss became nan"),
        trial(3, "repeated", best=None, value=None, same_as=0),
        trial(4, "complete", best=better, value=70.0, feasible=False),
        trial(5, "running", best=None, value=None, curve=[]),
    ]
    head = {"schema": 1, "state": "searching", "name": "digits", "metric": "accuracy", "goal": {"maximise": "accuracy"}}
    return {**head, "trials_planned": 8, "trials": trials, "space": [], "further": "key"}


def write(folder: Path, tree: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tune.json").write_text(json.dumps(tree))
    return folder


@pytest.mark.parametrize("above", [True, False])
def test_trials_are_tiles(tmp_path: Path, above: bool) -> None:
    """In a dashboard of the tune's folder, and in one of the folder above."""
    folder = write(tmp_path / "tuned", searching())
    dashboard = Dashboard(tmp_path if above else folder)
    text = dashboard.page().decode()
    live = dashboard._tree["live"]
    (board,) = live["boards"]
    assert board["title"] == "Tune tuned"
    states = ["done", "pruned", "failed", "repeated", "done", "running", "queued", "queued"]
    assert [tile["state"] for tile in board["tiles"]] == states
    assert board["tiles"][0]["label"] == "trial 0, FedAvg, n = 4"
    assert board["tiles"][0]["text"] == "accuracy 63.0 % after 2.00 virtual h, 12.2 virtual CPU h"
    assert board["tiles"][3]["text"] == "the same as trial 0"
    assert board["tiles"][4]["text"].endswith("outside the limits")
    assert board["facts"]["best so far, on validation samples"].startswith("trial 0, accuracy 63.0 %")
    assert [one["reason"] for one in board["failed"]] == ["the loss became nan"]
    assert board["share"] == 62  # five of eight
    assert live["tab"] == "4/8 runs · 1 failed · 62 % · cpfl"
    assert "62 % of the trials" in text
    assert EVIL not in text.split("<script")[0]


def test_the_best_is_that_of_the_goal(tmp_path: Path) -> None:
    tree = searching() | {"goal": {"minimise": "cpu_hours"}}
    tree["trials"][0]["value"], tree["trials"][1]["value"] = 12.2, 3.0
    dashboard = Dashboard(write(tmp_path / "tuned", tree))
    dashboard.page()
    assert dashboard._tree["live"]["boards"][0]["facts"]["best so far, on validation samples"].startswith("trial 1,")


def test_a_finished_tune_is_left_to_the_report(tmp_path: Path) -> None:
    dashboard = Dashboard(write(tmp_path / "tuned", searching() | {"state": "finished"}))
    dashboard.page()
    assert dashboard._tree["live"]["boards"] == []


@pytest.mark.parametrize("tree", [[], {}, searching() | {"trials": [5]}, searching() | {"goal": {}}, "x"], ids=str)
def test_a_foreign_shape_is_named(tree: object, tmp_path: Path) -> None:
    dashboard = Dashboard(write(tmp_path / "tuned", tree).parent)
    text = dashboard.page().decode()
    assert "1 folder is damaged" in text
    assert "tune.json is damaged" in text
