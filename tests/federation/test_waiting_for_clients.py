"""A round that needs several results waits until so many clients are available; if they never are, it says why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import Command
from tests.federation.cohorts import MODEL_BYTES, close, cohort, session

from cpfl.devices.availability import AvailabilitySchedule
from cpfl.errors import CpflError, SettingError
from cpfl.federation.rounds.synchronous import first_time_together, horizon
from cpfl.federation.selection.base import Selection

ALWAYS = AvailabilitySchedule((0.0,), (100_000.0,), 100_000.0)


def there(*spells: tuple[float, float], period: float = 1000.0) -> AvailabilitySchedule:
    return AvailabilitySchedule(tuple(begin for begin, _ in spells), tuple(end for _, end in spells), period)


@pytest.mark.parametrize("comes", [5_000.0, 20_000.0])
def test_nobody_trains_while_too_few_are_available(comes: float) -> None:
    one = session([2, 2], [1000.0] * 2, [ALWAYS, there((comes, 1e5), period=1e5)], federation__min_results=2)
    record = close(one, [2, 2]).record
    assert record.clock == pytest.approx(comes + 8)
    assert (record.participants, record.repeats, record.wasted_cpu_seconds, record.wasted_bytes) == ([0, 1], 0, 0.0, 0)
    assert (record.cpu_seconds, record.bytes) == (12.0, 4 * MODEL_BYTES)


def test_some_leave_before_others_come() -> None:
    """From 10 on there are never two of the first three at once; the first and the last meet at 700."""
    weeks = [there((0, 20), (700, 900)), there((30, 50)), there((60, 80)), there((500, 800))]
    one = session([2] * 4, [1000.0] * 4, weeks, federation__min_results=2, federation__participants=2)
    record = close(one, [2] * 4).record
    assert (record.participants, record.repeats) == ([0, 3], 0)
    assert record.clock == pytest.approx(708)


def test_pending_clients_are_not_waited_for() -> None:
    """The second is always there, but slow: still at work when the first round ends at 8. The others meet next at 600,
    where the fourth alone would have made two with the second at 500."""
    samples, weeks = [2, 500, 2, 2], [there((0, 8), (600, 700)), ALWAYS, there((0, 8)), there((500, 700))]
    one = session(
        samples,
        [1000.0] * 4,
        weeks,
        federation__min_results=2,
        federation__straggler_policy="stale",
        federation__deadline=9,
    )
    first, second = close(one, samples).record, close(one, samples).record
    assert (first.participants, first.clock) == ([0, 2], 9.0)
    assert (second.participants, second.clock, second.repeats) == ([0, 3], pytest.approx(608), 0)


@st.composite
def weeks(draw: st.DrawFn) -> list[AvailabilitySchedule]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        moments = sorted(draw(st.sets(st.integers(0, 30), min_size=2, max_size=8)))
        pairs = list(zip(moments[::2], moments[1::2], strict=False))
        found.append(there(*pairs, period=float(draw(st.sampled_from([30, 30, 30, 37])))))
    return found


@given(weeks(), st.integers(1, 4), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_the_first_such_moment(found: list[AvailabilitySchedule], wanted: int, clock: int) -> None:
    """Against a look at every second: all begins and ends are whole seconds."""
    about = cohort([1] * len(found), [1000.0] * len(found), found)
    last = clock + int(horizon(about, about.clients))
    seen = (
        second for second in range(clock, last + 1)
        if sum(week.available_until(float(second)) > second for week in found) >= wanted
    )  # fmt: skip
    assert first_time_together(about, about.clients, wanted, float(clock)) == next(seen, None)


class Counted(AvailabilitySchedule):
    """A week that counts how often it is looked at."""

    looks = 0

    def available_until(self, time: float) -> float:
        Counted.looks += 1
        return super().available_until(time)


class Weeks:
    """Of every client."""

    fingerprint = ""

    def __init__(self, weeks: Sequence[AvailabilitySchedule]) -> None:
        self.schedule = weeks.__getitem__


def test_thousands_are_looked_at_once_for_each_coming_and_going() -> None:
    """Not all of them at every moment at which one comes."""
    rng, count = np.random.default_rng(4), 3000
    about = cohort([1] * count, [1.0] * count, [ALWAYS] * count)
    moments = np.sort(rng.uniform(0, 1000, (count, 20)), axis=1)
    found = [Counted(tuple(row[::2].tolist()), tuple(row[1::2].tolist()), 1000.0) for row in moments]
    about = replace(about, fleet=replace(about.fleet, availability=Weeks(found)))
    assert first_time_together(about, about.clients, count, 0.0) is None
    assert count * 20 <= Counted.looks <= count * 60


class One(Selection):
    """Selects too few."""

    def select(self, available: Sequence[int], *rest: Any) -> Sequence[int]:
        return [available[0]]


CAUSES: dict[str, tuple[dict[str, Any], list[AvailabilitySchedule] | None, list[str]]] = {
    "late": ({"federation__deadline": 7}, [ALWAYS] * 2, ["clients were late 2000 times (federation.deadline)"]),
    "left": ({}, [there((0, 5))] * 2, ["clients left 2000 times (devices.availability)"]),
    "crashed": ({"devices__crash_rate": 0.9999}, None, ["clients crashed ", "(devices.crash_rate)"]),
    "left and late": (
        {"federation__deadline": 7}, [there((0, 5)), ALWAYS],
        ["left 1000 times (devices.availability), clients were late 1000 times (federation.deadline)"],
    ),
    "chosen": ({"federation__selection": f"{__name__}:One"}, [ALWAYS] * 2, ["chose fewer 1000 times"]),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_the_true_cause_is_told(cause: str) -> None:
    changes, found, reported = CAUSES[cause]
    one = session([2, 2], [1000.0] * 2, found, federation__min_results=2, **changes)
    with pytest.raises(CpflError) as error:
        one.open_round()
    said = str(error.value)
    assert said.startswith(
        "round 1 of cohort 0 returned fewer than federation.min_results = 2 results in 1000 attempts: "
    )
    assert all(word in said for word in reported), said
    named = {"late": "deadline", "left": "availability", "crashed": "crash_rate", "chose": "selection"}
    assert [word in said for word in named] == [key in said for key in named.values()]
    assert [word in said for word in named] == [word in " ".join(reported) for word in named]


def test_never_at_once_is_told_before_anybody_trains(cpfl_command: Command, tmp_path: Path) -> None:
    users = {
        str(user): {"active": [user * 5000], "inactive": [user * 5000 + 4000], "finish_time": 86_400 * 4}
        for user in range(40)
    }
    (tmp_path / "phones.json").write_text(json.dumps(users))
    words = ["--set", "devices.availability=phones.json", "--set", "federation.min_results=2", "--out", "run"]
    answer = cpfl_command("run", "digits", *words)
    assert answer.code == 2
    assert answer.err == (
        "cpfl: federation.min_results = 2 is more than are ever available at once, in the 4 days from round 1 of "
        "cohort 0 on (devices.availability): lower it\n"
    )
    assert not (tmp_path / "run").exists()


def test_never_again_is_told_too() -> None:
    """Weeks of different length: two meet at first, and then not for as long as it is looked."""
    found = [there((0, 10), period=1000.0), there((0, 10), period=1500.0)]
    assert first_time_together(cohort([1, 1], [1.0, 1.0], found), [0, 1], 2, 20.0) == pytest.approx(3000)
    with pytest.raises(SettingError, match=r"federation.min_results = 2 is more than are ever available at once"):
        session([1, 1], [1.0, 1.0], [there((0, 10)), there((20, 30))], federation__min_results=2)
