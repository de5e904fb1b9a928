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


@pytest.mark.parametrize("case", CASES)
def test_whole_run(case: str, tmp_path: Path) -> None:
    interval, more = CASES[case]
    (x, y), (x_test, y_test), (x_public, _) = points(1, 160), points(2, 60), points(7, 50)
    settings = HERE | {"meetings.interval": interval} | more
    arrays: dict[str, Any] = {"train": (x, y), "test": (x_test, y_test), "public": x_public}
    run = cpfl.run(cpfl.Experiment(), model=Net, out=tmp_path / "run", settings=settings, **arrays)
    folder, e = RunFolder.open(run.path), run.experiment
    fleet = draw_fleet(e.devices, e.clients, e.seed, [])
    s = algorithm.Settings(
        e.clients, e.cohorts, e.seed, e.max_rounds, alpha=0.5, participation=e.federation.participation, batch_size=8,
        lr=0.05, model_bytes=MODEL_BYTES,
    )  # fmt: skip
    parts = split.split_samples(s.split, y, 3, s.clients, s.seed, s.alpha, s.shards, s.remainder)
    clients = [algorithm.Client(*split.hold_out(part, client, s.seed)) for client, part in enumerate(parts)]
    every = {"rounds": 4} if interval == "4 rounds" else {"seconds": float(interval[:-1])}
    expected, models, met = meetings.train_cohorts(
        s, folder.about()["cohorts"], clients, x, y, fleet.compute_ms, fleet.network_kbps,
        start_of(folder, e.seed, "init"), weights=more.get("meetings.rule_args.weights", "equal"), **every,
    )  # fmt: skip

    assert len(met) > 1
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
