"""The board of a sweep: its runs by state, why some failed, how much work is done and how long the rest takes."""

from __future__ import annotations

import json
import math
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cpfl
from cpfl.dashboard import machine
from cpfl.dashboard.dashboard import Dashboard
from cpfl.dashboard.figures import Colours
from cpfl.dashboard.follow import Followed
from cpfl.dashboard.state import patience
from cpfl.dashboard.sweeps import FollowedSweep
from cpfl.errors import SweepError
from cpfl.reports import style
from cpfl.runs import records
from cpfl.settings import Experiment

SMALL = {
    "clients": 8,
    "max_rounds": 6,
    "data.train_limit": 200,
    "data.public_limit": 50,
    "model.args.hidden": 8,
    "distillation.epochs": 2,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real sweep of four runs, of which those with a huge learning rate fail."""
    folder = tmp_path_factory.mktemp("sweeps") / "demo"
    common: dict[str, Any] = {"settings": SMALL, "device": "cpu", "engine": "reference"}
    with pytest.raises(SweepError):
        cpfl.sweep("digits", cohorts=[1, 2], over={"federation.lr": [0.05, 1e30]}, out=folder, **common)
    return folder


@pytest.fixture
def sweep(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "demo"))


def events(folder: Path) -> list[dict[str, Any]]:
    return records.read(folder / "log.jsonl")


def rewrite(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "log.jsonl").unlink()
    records.append(folder / "log.jsonl", *lines)


def live(folder: Path) -> dict[str, Any]:
    """The live part of a dashboard's page, asked for once."""
    dashboard = Dashboard(folder)
    dashboard.page()
    found: dict[str, Any] = dashboard._tree["live"]
    return found


def test_a_sweep_writes_what_happens(made: Path) -> None:
    found = events(made)
    failing = [path.name for path in sorted(made.iterdir()) if path.is_dir() and not (path / "summary.json").is_file()]
    assert len(failing) == 2
    assert [line["event"] for line in found[:2]] == ["started", "begun"]
    assert found[-1]["event"] == "ended"
    assert sorted(line["run"] for line in found if line["event"] == "begun") == sorted(found[0]["runs"])
    failed = {line["run"]: line["reason"] for line in found if line["event"] == "failed"}
    assert sorted(failed) == failing
    assert all("lower federation.lr" in reason and len(reason.splitlines()) == 1 for reason in failed.values())
    assert [line["time"] for line in found] == sorted(line["time"] for line in found)


def test_failures_are_named_with_their_reason(made: Path) -> None:
    found = live(made.parent)
    (board,) = found["boards"]
    assert board["title"] == "Sweep demo"
    assert {one["state"]: one["count"] for one in board["counts"]} == {"done": 2, "failed": 2}
    assert [tile["state"] for tile in board["tiles"]] == ["done", "done", "failed", "failed"]
    assert [tile["label"] for tile in board["tiles"]][:2] == ["n = 1, seed 90, lr = 0.05", "n = 2, seed 90, lr = 0.05"]
    assert [line["reason"].count("lower federation.lr") for line in board["failed"]] == [1, 1]
    assert found["sentence"] == "4 runs: 2 failed, 2 finished."
    assert found["tab"] == "2/4 runs · 2 failed · 100 % · cpfl"
    assert found["runs"] == []  # a failed run is not said to be quiet
    summary = json.loads((made / "n001-seed90-federation.lr-0.05" / "summary.json").read_text())
    assert f"accuracy {summary['student_accuracy']:.1f} %" in board["tiles"][0]["text"]
    assert "virtual h" in board["tiles"][0]["text"]


def test_what_has_not_begun_is_queued(sweep: Path) -> None:
    """The sweep as it was before its second run: one done, three queued."""
    first, *others = sorted(path for path in sweep.iterdir() if path.is_dir() and "0.05" in path.name)
    started, *_ = events(sweep)
    rewrite(sweep, started, {"event": "begun", "time": started["time"], "run": first.name})
    for path in [*others, *(path for path in sweep.iterdir() if path.is_dir() and path != first)]:
        shutil.rmtree(path, ignore_errors=True)
    found = live(sweep)
    (board,) = found["boards"]
    assert [tile["state"] for tile in board["tiles"]] == ["done", "queued", "queued", "queued"]
    assert board["share"] == 25  # the others are expected to take as much
    assert found["sentence"] == "4 runs: 3 queued, 1 finished."
    assert found["tab"] == "1/4 runs · 25 % · cpfl"
    rewrite(sweep, started, {"event": "interrupted", "time": started["time"] + 1e9})
    found = live(sweep)
    assert [tile["text"] for tile in found["boards"][0]["tiles"][1:]] == ["not begun"] * 3
    assert found["sentence"] == "4 runs: 3 interrupted, 1 finished."


def test_a_run_that_is_made_again_has_not_failed(sweep: Path) -> None:
    failed = next(line["run"] for line in events(sweep) if line["event"] == "failed")
    records.append(sweep / "log.jsonl", {"event": "started", "time": 2e9, "runs": [failed], "finished": []})
    records.append(sweep / "log.jsonl", {"event": "begun", "time": 2e9, "run": failed})
    board = live(sweep)["boards"][0]
    assert failed not in {one["name"] for one in board["failed"]}
    assert len(board["failed"]) == 1


def test_the_report_appears_with_the_second_n(sweep: Path) -> None:
    dashboard = Dashboard(sweep)
    assert b'data-figure="trade-off"' in dashboard.page()
    started, *_ = events(sweep)
    rewrite(sweep, started)
    shutil.rmtree(sweep / "n002-seed90-federation.lr-0.05")
    for path in sweep.glob("*1e+30*"):
        shutil.rmtree(path)
    text = Dashboard(sweep).page()
    assert b'data-figure="trade-off"' not in text
    assert b'id="advice"' not in text
    records.append(sweep / "log.jsonl", {"event": "ended", "time": 2e9})
    assert b'data-figure="trade-off"' in Dashboard(sweep).page()  # nothing will come to compare it with


def test_the_rate_is_that_of_the_whole_time(sweep: Path) -> None:
    started, *_ = events(sweep)
    followed = FollowedSweep(sweep)
    rewrite(sweep, started | {"time": 1000.0})
    assert followed.update()
    assert not followed.update()
    assert followed.rate(50.0, 1010.0) == pytest.approx(5)  # with the time before the dashboard looked
    assert followed.rate(50.0, 1020.0) == pytest.approx(2.5)
    records.append(sweep / "log.jsonl", started | {"time": 2000.0, "finished": ["n001-seed90"]})
    followed.update()
    assert followed.rate(50.0, 2010.0) == 0  # resumed: what was done before is not of this time
    assert followed.rate(80.0, 2020.0) == pytest.approx(3)


@pytest.mark.parametrize("line", [{"event": "failed", "time": 1.0}, {"event": "begun", "time": "x", "run": "a"}, {}])
def test_a_damaged_log_is_named(line: dict[str, Any], sweep: Path) -> None:
    records.append(sweep / "log.jsonl", line)
    dashboard = Dashboard(sweep.parent)
    text = dashboard.page().decode()
    assert "1 folder is damaged" in text
    assert [board["title"] for board in dashboard._tree["live"]["boards"]] == ["Runs"]  # they are shown all the same


def test_a_reason_cannot_act(sweep: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    failed = next(line["run"] for line in events(sweep) if line["event"] == "failed")
    records.append(sweep / "log.jsonl", {"event": "failed", "time": 2e9, "run": failed, "reason": evil})
    text = Dashboard(sweep).page().decode()
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") == 2  # in its tile and among the failures
    assert evil not in text


def test_many_runs_are_counted(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpfl.dashboard.board.TILES", 2)
    board = live(sweep)["boards"][0]
    assert [tile["state"] for tile in board["tiles"]] == ["failed", "failed"]  # finished ones are left out first
    assert board["more"] == 2


def test_meetings_are_marked(tmp_path: Path) -> None:
    """A real run whose cohorts met; it is shown as if it still trained."""
    settings = SMALL | {"cohorts": 2, "meetings.rule": "mean", "meetings.interval": "2 rounds"}
    run = cpfl.run("digits", settings=settings, out=tmp_path / "runs" / "met", device="cpu", engine="reference").path
    (run / "summary.json").unlink()
    met = records.read(run / "meetings.jsonl")
    assert met
    found = live(tmp_path / "runs")
    assert found["runs"][0]["cells"]["meetings"] == str(len(met))
    (curves,) = found["figures"]
    rows = curves["spec"]["datasets"]["meetings"]
    assert [row["meeting"] for row in rows] == [line["meeting"] for line in met]
    assert [row["hours"] for row in rows] == pytest.approx([line["clock"] / 3600 for line in met], rel=1e-4)
    assert "a dashed line at every meeting" in curves["caption"]
    path = run / "meetings.jsonl"
    path.write_text(path.read_text().replace('"clock":', '"cluck":'))
    dashboard = Dashboard(tmp_path / "runs")
    assert "meetings.jsonl was changed" in dashboard.page().decode()


def test_a_run_keeps_its_colour() -> None:
    colours = Colours()
    first = dict(colours.of(["a", "b"]))
    assert len(set(first.values())) == 2
    later = dict(colours.of(["c", "a", "b", "d"]))  # the latest come first
    assert {name: later[name] for name in first} == first
    assert len(set(later.values())) == 4
    without = dict(colours.of(["d", "b"]))
    assert without == {name: later[name] for name in ("d", "b")}
    many = colours.of([str(i) for i in range(2 * len(style.PALETTE))])
    assert all(list(many.values()).count(colour) == 2 for colour in style.PALETTE)


def test_what_is_said_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.Machine().facts()
    assert found.keys() == {"load of this machine", "memory of this machine"}
    assert " cores" in found["load of this machine"]
    used, whole = (float(part) for part in found["memory of this machine"].removesuffix(" GB").split(" of "))
    assert 0 < used <= whole < math.inf


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        (
            "0, 1024, 143771, 97\n1, 0, 143771, [N/A]",
            {"GPU 0": "1.1 of 150.8 GB, 97 % busy", "GPU 1": "0.0 of 150.8 GB"},
        ),
        ("No devices were found", {}),
        ("0, [N/A], [N/A], 5", {}),
    ],
)
def test_gpus_are_those_of_nvidia_smi(
    said: str, gpus: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program answers as NVIDIA documents it; there need be no GPU here."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$2\" = '--format=csv,noheader,nounits' ] && echo '{said}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus() == gpus
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine.gpus() == {}


def test_patience_is_what_the_rule_still_allows(made: Path) -> None:
    """Of a real run after six rounds, as if its limits were others."""
    followed = Followed(made / "n002-seed90-federation.lr-0.05", made)
    followed.reload()
    followed.read(1 << 20)
    facts = followed.facts
    for history in followed.histories:
        history.stop, history.best_round = "", 4

    def told(**settings: Any) -> list[str]:
        changed = replace(facts, experiment=Experiment(clients=8, cohorts=2, **settings))
        found = patience(changed, followed.histories)
        return [chip["text"] for chip in found["chips"]]

    assert told(stopping={"patience": 20}) == ["18 rounds"] * 2
    assert told(stopping={"patience": 3}) == ["1 round"] * 2
    assert told(stopping={"patience": 20}, max_rounds=10) == ["4 rounds, by a limit"] * 2
    assert told(stopping={"rule": "joint", "eval_interval": 4}) == ["2 rounds"] * 2
    assert told(stopping={"rule": "rounds", "rounds": 30}) == ["24 rounds"] * 2
    followed.histories[0].stop = "plateau"
    assert len(told(stopping={"patience": 20})) == 1
