"""Meetings in float64 equal the numpy implementation in tests/reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.test_against_reference import BASE, MODEL_BYTES, SKEWED, Net, assert_equal, points, start_of

import cpfl
from cpfl.devices.fleet import fleet as draw_fleet
from cpfl.runs import records
from cpfl.runs.folder import RunFolder, load_state
from reference import algorithm, meetings, split

HERE = BASE | SKEWED | {"max_rounds": 9, "stopping.rule": "budget", "stopping.max_hours": 1000, "stopping.keep": "last"}
HERE = {key: value for key, value in HERE.items() if key != "stopping.patience"} | {"meetings.rule": "mean"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rounds": ("4 rounds", {}),
    "a time": ("25s", {}),
    "an interval that is shorter than a round": ("2s", {}),
    "some clients, by samples": ("15s", {"federation.participation": 0.4, "meetings.rule_args.weights": "samples"}),
    "by work": ("25s", {"meetings.rule_args.weights": "work"}),
}


def both(out: Path, interval: str, changes: dict[str, Any], **asked: Any) -> tuple[cpfl.Run, Any, Any, Any]:
    """A run, and what the reference says of it: rounds, models and meetings."""
    (x, y), (x_test, y_test), (x_public, _) = points(1, 160), points(2, 60), points(7, 50)
    settings = {key: value for key, value in HERE.items() if key not in changes.get("gone", ())}
    settings |= {"meetings.interval": interval} | {key: value for key, value in changes.items() if key != "gone"}
    arrays: dict[str, Any] = {"train": (x, y), "test": (x_test, y_test), "public": x_public}
    run = cpfl.run(cpfl.Experiment(), model=Net, out=out, settings=settings, **arrays)
    folder, e = RunFolder.open(run.path), run.experiment
    fleet = draw_fleet(e.devices, e.clients, e.seed, [])
    s = algorithm.Settings(
        e.clients, e.cohorts, e.seed, e.max_rounds, alpha=0.5, participation=e.federation.participation, batch_size=8,
        lr=0.05, model_bytes=MODEL_BYTES,
    )  # fmt: skip
    parts = split.split_samples(s.split, y, 3, s.clients, s.seed, s.alpha, s.shards, s.remainder)
    clients = [algorithm.Client(*split.hold_out(part, client, s.seed)) for client, part in enumerate(parts)]
    size, _, word = interval.partition(" ")
    every = {"rounds": int(size)} if word else {"seconds": float(size[:-1])}
    train = asked.pop("train", meetings.train_cohorts)
    return run, *train(
        s, folder.about()["cohorts"], clients, x, y, fleet.compute_ms, fleet.network_kbps,
        start_of(folder, e.seed, "init"), weights=changes.get("meetings.rule_args.weights", "equal"), **every, **asked,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whole_run(case: str, tmp_path: Path) -> None:
    interval, more = CASES[case]
    run, expected, models, met = both(tmp_path / "run", interval, more)
    assert len(met) > 1
    check_models(run, expected, models, met)


@pytest.mark.parametrize(("interval", "per"), [("2 rounds", "cpu_hours"), ("12s", "hours")])
def test_the_stopping_rule_joint(interval: str, per: str, tmp_path: Path) -> None:
    """It stops before the last round there could be, and nobody continues from the model that was evaluated last."""
    joint = {
        "gone": ["stopping.max_hours"], "stopping.rule": "joint", "stopping.min_gain": 30.0, "stopping.eval_window": 4,
        "stopping.gain_per": per, "max_rounds": 40,
    }  # fmt: skip
    run, expected, models, met = both(tmp_path / "run", interval, joint, min_gain=30.0, window=4, gain_per=per)
    assert met[-1]["stop"]
    check_models(run, expected, models, met[:-1])
    folder = RunFolder.open(run.path)
    evaluated = records.read_sealed(folder.evaluations(), folder.identity)
    assert [line["decision"] for line in evaluated] == ["continue"] * (len(met) - 1) + ["stop"]
    for key in ("clock", "accuracy", "cpu_hours", "bytes"):
        assert [line[key] for line in evaluated] == pytest.approx([one[key] for one in met])
    assert {line["stop"] for line in run.rounds if line["stop"]} == {"joint"}
    assert run.summary["cpu_hours"] == pytest.approx(met[-1]["cpu_hours"])
    assert run.summary["hours"] == pytest.approx(met[-1]["clock"] / 3600)


def check_models(run: cpfl.Run, expected: list[Any], models: list[Any], met: list[dict[str, Any]]) -> None:
    """Rounds, teachers and meetings are those of the reference."""
    folder = RunFolder.open(run.path)
    for cohort, lines in enumerate(expected):
        ours = [line for line in run.rounds if line["cohort"] == cohort]
        assert [line["participants"] for line in ours] == [line["participants"] for line in lines]
        assert [line["clock"] for line in ours] == pytest.approx([line["clock"] for line in lines])
        assert_equal(load_state(folder.teacher(cohort)), models[cohort])
    held = records.read_sealed(folder.meetings(), folder.identity)
    assert [line["cohorts"] for line in held] == [one["cohorts"] for one in met]
    assert [line["clock"] for line in held] == pytest.approx([one["clock"] for one in met])
    for line, one in zip(held, met, strict=True):
        assert_equal(load_state(folder.meeting_model(line["meeting"])), one["model"])


@pytest.mark.parametrize(
    ("interval", "args"),
    [("1s", {"momentum": 0.6, "lr": 0.8, "damping": 1.0}), ("2 rounds", {"weights": "samples", "damping": 0.3})],
)
def test_cohorts_that_come_one_by_one(interval: str, args: dict[str, Any], tmp_path: Path) -> None:
    """Cohorts by speed: the fast ones come so often that the updates of the slow ones are damped."""
    changes: dict[str, Any] = {"meetings.rule": "asynchronous", "assignment.rule": "speed"}
    changes |= {f"meetings.rule_args.{key}": value for key, value in args.items()}
    one_by_one = {"train": meetings.train_one_by_one} | {k: v for k, v in args.items() if k != "weights"}
    run, expected, models, met = both(tmp_path / "run", interval, changes, **one_by_one)
    assert len({one["cohorts"][0] for one in met}) == 3
    check_models(run, expected, models, met)
    came = [one["cohorts"][0] for one in met]
    missed = [
        sum(other != cohort for other in came[max(i for i in range(k) if came[i] == cohort) + 1 : k])
        for k, cohort in enumerate(came)
        if cohort in came[:k]
    ]
    assert max(missed) > 2, "some updates are damped"


def test_cohorts_that_are_drawn_anew(tmp_path: Path) -> None:
    run, expected, models, met = both(tmp_path / "run", "2 rounds", {"meetings.redraw": True}, redraw=True)
    check_models(run, expected, models, met)
    folder = RunFolder.open(run.path)
    held = records.read_sealed(folder.meetings(), folder.identity)
    assert [line["clients"] for line in held] == [one["clients"] for one in met]
    assert held[0]["clients"] != held[1]["clients"] != folder.about()["cohorts"]
