"""Limits and goals: which point of a curve counts, and what is behind."""

from __future__ import annotations

import pytest

from cpfl.errors import SettingError
from cpfl.tuning.goal import Goal, Point, behind, front, gigabytes


def point(hours: float, accuracy: float, cpu: float = 1.0, traffic: float = 1.0) -> Point:
    return Point(hours, cpu * hours, traffic * hours, accuracy, 1, hours)


CURVE = [point(1, 30), point(2, 60), point(3, 55), point(4, 59)]


def test_the_most_accurate_point_within_the_limits() -> None:
    assert Goal(hours=10).best(CURVE) == point(4, 59)  # by the mean of three points: 60 was luck
    assert Goal(hours=10).value(CURVE) == pytest.approx(58)
    assert Goal(hours=1.5).best(CURVE) == point(1, 30)
    assert Goal(hours=10, cpu_hours=0.5).best(CURVE) is None
    assert Goal(hours=10, cpu_hours=0.5).violations(CURVE)["cpu_hours"] == pytest.approx(1.0)
    assert Goal(traffic_gb=2).best(CURVE) == point(2, 60)


def test_the_cheapest_point_with_an_accuracy() -> None:
    goal = Goal(accuracy=50, minimise="cpu_hours")
    assert goal.best(CURVE) == point(2, 60)
    assert goal.value(CURVE) == 2
    assert Goal(hours=1, accuracy=50, minimise="cpu_hours").best(CURVE) is None
    assert Goal(accuracy=90, minimise="hours").violations(CURVE) == {"accuracy": 30}


def test_behind_needs_every_cost_and_every_late_point() -> None:
    slow = [point(k, 10 * k - 5) for k in range(1, 5)]
    fast = [point(k, 10 * k) for k in range(1, 5)]
    assert behind(slow, [fast], margin=2, last=4)
    assert not behind(slow, [fast], margin=6, last=4)
    assert not behind(slow[:3], [fast], margin=2, last=4)
    assert not behind([point(k, 10 * k - 5, traffic=0.1) for k in range(1, 5)], [fast], margin=2, last=4)
    assert not behind(slow, [], margin=2, last=4)


def test_the_front_rises() -> None:
    found = front({0: CURVE, 7: [point(1.5, 20), point(3, 70)]}, "hours")
    assert [(one["trial"], one["hours"], one["accuracy"]) for one in found] == [(0, 1, 30), (0, 2, 60), (7, 3, 70)]


@pytest.mark.parametrize(("text", "amount"), [("50GB", 50), ("500 MB", 0.5), ("1.5tb", 1500), ("2", 2), (3, 3)])
def test_traffic(text: str | float, amount: float) -> None:
    assert gigabytes(text) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "a goal is missing"),
        ({"hours": 0}, "hours = 0 is not allowed: above 0"),
        ({"traffic": "5 elephants"}, "traffic = '5 elephants' is no amount: write 50GB"),
        ({"accuracy": 170}, "accuracy = 170 is not allowed: per cent"),
        ({"minimise": "cpu"}, "minimise = cpu needs accuracy"),
        ({"accuracy": 70, "minimise": "money"}, "minimise = 'money' is not allowed: hours, cpu, traffic"),
    ],
)
def test_goals_that_are_refused(given: dict[str, object], sentence: str) -> None:
    wanted = {"hours": None, "cpu_hours": None, "traffic": None, "accuracy": None, "minimise": None, **given}
    with pytest.raises(SettingError, match=sentence):
        Goal.of(**wanted)  # type: ignore[arg-type]
