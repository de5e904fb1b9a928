"""When clients are there: a week walked by hand, FedScale's own rule second by second, the synthetic week."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpfl.availability import WEEK, Trace, Week, availability, read, synthetic
from cpfl.errors import DataError
from cpfl.experiment import Devices

# Monday 22:00–06:00 every night of a three-day period, with a gap on the second evening:
# there 22–30 h, 46–48 h, 50–54 h and 70–72 h, then the period begins anew with 0–6 h.
HOUR = 3600.0
NIGHTS = Week(
    tuple(HOUR * h for h in (0, 22, 46, 50, 70)), tuple(HOUR * h for h in (6, 30, 48, 54, 72)), period=72 * HOUR
)


@pytest.mark.parametrize(
    ("hour", "leaves", "back"),
    [
        (0, 6, 0),
        (5.5, 6, 5.5),
        (6, 6, 22),  # it leaves at that moment
        (21, 21, 22),
        (22, 30, 22),
        (29.9, 30, 29.9),
        (30, 30, 46),
        (47, 48, 47),
        (48.5, 48.5, 50),
        (69, 69, 70),
        (71, 78, 71),  # over the end of the period, into the next one's first spell
        (72, 78, 72),
        (78, 78, 94),
        (72 * 9 + 23, 72 * 9 + 30, 72 * 9 + 23),  # any later week
    ],
)
def test_a_week_by_hand(hour: float, leaves: float, back: float) -> None:
    assert NIGHTS.until(hour * HOUR) == pytest.approx(leaves * HOUR)
    assert NIGHTS.back(hour * HOUR) == pytest.approx(back * HOUR)


def test_shares_by_hand() -> None:
    assert NIGHTS.share(20 * HOUR, 24 * HOUR) == pytest.approx(0.5)
    assert NIGHTS.share(47 * HOUR, 51 * HOUR) == pytest.approx(0.5)  # 47–48 and 50–51
    assert NIGHTS.share(71 * HOUR, 81 * HOUR) == pytest.approx(0.7)
    assert NIGHTS.share(7 * HOUR, 9 * HOUR) == 0


def test_never_away() -> None:
    always = Week((0.0,), (100.0,), 100.0)
    assert always.until(1234.5) == math.inf
    assert always.back(1234.5) == 1234.5


def fedscale_says(row: dict[str, list[int]], second: int, period: int) -> bool:
    """Whether FedScale's client manager has the user active: a spell that contains the second, modulo finish_time."""
    now = second % period
    return any(a <= now < i for a, i in zip(row["active"], row["inactive"], strict=True))


def test_a_file_second_by_second(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tree = {}
    for user in range(6):
        moments = np.sort(rng.choice(300, 8, replace=False)).tolist()
        tree[str(user)] = {"active": moments[::2], "inactive": moments[1::2], "finish_time": 300, "model": "X"}
    tree["0"]["active"][0] = 0
    tree["0"]["inactive"][-1] = 300
    (tmp_path / "t.json").write_text(json.dumps(tree))
    for row, week in zip(tree.values(), read(tmp_path / "t.json"), strict=True):
        there = [fedscale_says(row, second, 300) for second in range(1500)]
        for second in range(800):
            assert (week.until(second) > second) == there[second]
            until = next(s for s in range(second, 1500) if not there[s]) if there[second] else second
            assert week.until(second) == until
            assert week.back(second) == next(s for s in range(second, 1500) if there[s])


@given(st.integers(0, 2**30), st.integers(0, 50), st.floats(0.5, 40), st.floats(0.5, 40))
@settings(max_examples=30, deadline=None)
def test_synthetic_weeks_are_whole(seed: int, client: int, on: float, off: float) -> None:
    week = synthetic(on * 3600, off * 3600, seed, client)
    moments = [m for pair in zip(week.begins, week.ends, strict=True) for m in pair]
    assert moments == sorted(moments)
    assert 0 <= moments[0] < moments[-1] <= WEEK == week.period
    assert week == synthetic(on * 3600, off * 3600, seed, client)


def test_synthetic_weeks_have_the_share_that_was_asked_for() -> None:
    weeks = [synthetic(4 * HOUR, 8 * HOUR, 90, client) for client in range(400)]
    assert np.mean([week.share(0, WEEK) for week in weeks]) == pytest.approx(1 / 3, abs=0.02)
    assert np.mean([week.until(0) > 0 for week in weeks]) == pytest.approx(1 / 3, abs=0.08)


def test_users_are_assigned_by_the_seed(tmp_path: Path) -> None:
    tree = {str(u): {"active": [u], "inactive": [u + 5], "finish_time": 100} for u in range(20)}
    (tmp_path / "fedscale").mkdir()
    (tmp_path / "fedscale" / "client_behave_trace_20.json").write_text(json.dumps(tree))
    devices = Devices(availability="fedscale")

    def begins(clients: int, seed: int) -> list[float]:
        found = availability(devices, clients, seed, [tmp_path])
        assert found is not None
        return [found.week(client).begins[0] for client in range(clients)]

    assert sorted(begins(20, 1)) == list(range(20))  # each user once while there are enough
    assert begins(20, 1) == begins(20, 1) != begins(20, 2)
    assert len(begins(50, 1)) == 50  # then again


@pytest.mark.parametrize("kind", ["synthetic", "fedscale", "always"])
def test_weeks_travel_to_other_processes(kind: str, tmp_path: Path) -> None:
    """What was drawn or built of them stays behind: a letter is as long after weeks were asked for as before."""
    tree = {str(u): {"active": [u, 50], "inactive": [u + 5, 60 + u], "finish_time": 100} for u in range(20)}
    (tmp_path / "fedscale").mkdir()
    (tmp_path / "fedscale" / "client_behave_trace_20.json").write_text(json.dumps(tree))
    one, other = (availability(Devices(availability=kind), 50, seed, [tmp_path]) for seed in (1, 2))
    fresh = pickle.dumps(one)
    if one is None:
        assert kind == "always"
        return
    weeks = [one.week(client) for client in range(50)]
    assert pickle.dumps(one) == fresh
    again = pickle.loads(fresh)
    assert (again, again.known) == (one, one.known)
    assert [again.week(client) for client in range(50)] == weeks
    assert one != other
    if kind == "fedscale":
        assert len(fresh) < 20 * (2 * 2 + 2) * 8 + 50 * 8 + 1000  # numbers in columns, no text


def test_a_trace_in_columns_gives_every_client_its_user_s_week() -> None:
    weeks = [NIGHTS, Week((5.0,), (6.0,), 10.0), Week((0.0, 3.0), (1.0, 4.0), 5.0)]
    rows = [2, 0, 1, 1, 2]
    assert [Trace.of(weeks, rows).week(client) for client in range(5)] == [weeks[row] for row in rows]
    assert Trace.of(weeks, rows) == Trace.of(weeks, np.array(rows)) != Trace.of(weeks, [2, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "no users"),
        ({"7": {"active": [5], "inactive": [3], "finish_time": 10}}, "user 7"),
        ({"7": {"active": [5, 6], "inactive": [9], "finish_time": 10}}, "FedScale"),
        ({"7": {"active": [5], "inactive": [30], "finish_time": 10}}, "finish_time"),
        ({"7": {"active": [], "inactive": [], "finish_time": 10}}, "user 7"),
        ({"7": {"active": [5], "inactive": [6]}}, "finish_time"),
        ([1], "FedScale"),
    ],
)
def test_files_that_are_none(tree: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match=words):
        read(tmp_path / "t.json")
