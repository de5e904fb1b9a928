"""When clients are available: a schedule checked by hand, FedScale's own rule second by second, synthetic schedules."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpfl.devices.availability import WEEK, AvailabilitySchedule, Synthetic, Trace, availability, read
from cpfl.errors import DataError
from cpfl.settings import Devices

# Monday 22:00–06:00 every night of a three-day period, with a gap on the second evening:
# available 22–30 h, 46–48 h, 50–54 h and 70–72 h, then the period begins anew with 0–6 h.
HOUR = 3600.0
NIGHTS = AvailabilitySchedule(
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
        (71, 78, 71),  # over the end of the period, into the next one's first interval
        (72, 78, 72),
        (78, 78, 94),
        (72 * 9 + 23, 72 * 9 + 30, 72 * 9 + 23),  # any later period
    ],
)
def test_a_schedule_by_hand(hour: float, leaves: float, back: float) -> None:
    assert NIGHTS.available_until(hour * HOUR) == pytest.approx(leaves * HOUR)
    assert NIGHTS.next_available(hour * HOUR) == pytest.approx(back * HOUR)


def test_shares_by_hand() -> None:
    assert NIGHTS.share(20 * HOUR, 24 * HOUR) == pytest.approx(0.5)
    assert NIGHTS.share(47 * HOUR, 51 * HOUR) == pytest.approx(0.5)  # 47–48 and 50–51
    assert NIGHTS.share(71 * HOUR, 81 * HOUR) == pytest.approx(0.7)
    assert NIGHTS.share(7 * HOUR, 9 * HOUR) == 0


def test_always_available() -> None:
    always = AvailabilitySchedule((0.0,), (100.0,), 100.0)
    assert always.available_until(1234.5) == math.inf
    assert always.next_available(1234.5) == 1234.5


def fedscale_says(row: dict[str, list[int]], second: int, period: int) -> bool:
    """Whether FedScale's client manager has the user active: an interval contains the second modulo finish_time."""
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
    for row, schedule in zip(tree.values(), read(tmp_path / "t.json"), strict=True):
        available = [fedscale_says(row, second, 300) for second in range(1500)]
        for second in range(800):
            assert (schedule.available_until(second) > second) == available[second]
            until = next(s for s in range(second, 1500) if not available[s]) if available[second] else second
            assert schedule.available_until(second) == until
            assert schedule.next_available(second) == next(s for s in range(second, 1500) if available[s])


@given(st.integers(0, 2**30), st.integers(0, 50), st.floats(0.5, 40), st.floats(0.5, 40))
@settings(max_examples=30, deadline=None)
def test_synthetic_schedules_are_whole(seed: int, client: int, on: float, off: float) -> None:
    schedule = Synthetic(on * 3600, off * 3600, seed).schedule(client)
    moments = [m for pair in zip(schedule.begins, schedule.ends, strict=True) for m in pair]
    assert moments == sorted(moments)
    assert 0 <= moments[0] < moments[-1] <= WEEK == schedule.period
    assert schedule == Synthetic(on * 3600, off * 3600, seed).schedule(client)


def test_synthetic_schedules_have_the_expected_share() -> None:
    schedules = [Synthetic(4 * HOUR, 8 * HOUR, 90).schedule(client) for client in range(400)]
    assert np.mean([schedule.share(0, WEEK) for schedule in schedules]) == pytest.approx(1 / 3, abs=0.02)
    assert np.mean([schedule.available_until(0) > 0 for schedule in schedules]) == pytest.approx(1 / 3, abs=0.08)


def test_users_are_assigned_by_the_seed(tmp_path: Path) -> None:
    tree = {str(u): {"active": [u], "inactive": [u + 5], "finish_time": 100} for u in range(20)}
    (tmp_path / "fedscale").mkdir()
    (tmp_path / "fedscale" / "client_behave_trace_20.json").write_text(json.dumps(tree))
    devices = Devices(availability="fedscale")

    def begins(clients: int, seed: int) -> list[float]:
        found = availability(devices, clients, seed, [tmp_path])
        assert found is not None
        return [found.schedule(client).begins[0] for client in range(clients)]

    assert sorted(begins(20, 1)) == list(range(20))  # each user once while there are enough
    assert begins(20, 1) == begins(20, 1) != begins(20, 2)
    assert len(begins(50, 1)) == 50  # then again


@pytest.mark.parametrize("kind", ["synthetic", "fedscale", "always"])
def test_schedules_are_pickled_for_other_processes(kind: str, tmp_path: Path) -> None:
    """Schedules that were built are not pickled: the pickle is as long after their first use as before."""
    tree = {str(u): {"active": [u, 50], "inactive": [u + 5, 60 + u], "finish_time": 100} for u in range(20)}
    (tmp_path / "fedscale").mkdir()
    (tmp_path / "fedscale" / "client_behave_trace_20.json").write_text(json.dumps(tree))
    one, other = (availability(Devices(availability=kind), 50, seed, [tmp_path]) for seed in (1, 2))
    fresh = pickle.dumps(one)
    if one is None:
        assert kind == "always"
        return
    schedules = [one.schedule(client) for client in range(50)]
    assert pickle.dumps(one) == fresh
    again = pickle.loads(fresh)
    assert (again, again.fingerprint) == (one, one.fingerprint)
    assert [again.schedule(client) for client in range(50)] == schedules
    assert one != other
    if kind == "fedscale":
        assert len(fresh) < 20 * (2 * 2 + 2) * 8 + 50 * 8 + 1000  # numbers in columns, no text


def test_a_trace_in_columns_gives_every_client_its_user_s_schedule() -> None:
    schedules = [NIGHTS, AvailabilitySchedule((5.0,), (6.0,), 10.0), AvailabilitySchedule((0.0, 3.0), (1.0, 4.0), 5.0)]
    rows = [2, 0, 1, 1, 2]
    assert [Trace.from_schedules(schedules, rows).schedule(client) for client in range(5)] == [
        schedules[row] for row in rows
    ]
    assert (
        Trace.from_schedules(schedules, rows)
        == Trace.from_schedules(schedules, np.array(rows))
        != Trace.from_schedules(schedules, [2, 0, 1, 1, 1])
    )


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
