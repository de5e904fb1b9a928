"""Which n a report recommends, and what it says against it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpfl.errors import SettingError
from cpfl.report.advice import advise, check_max_drop
from cpfl.report.figures import pareto


def row(n: int, accuracy: float, hours: float, **more: Any) -> dict[str, Any]:
    spread = {"student_accuracy_spread": 0.1, "hours_spread": 0.1}
    own = {"cohorts": n, "student_accuracy": accuracy, "hours": hours, "cpu_hours": 10 * hours, "comm_gb": hours}
    return own | spread | {"seeds": 3, "cut_off": 0} | more


ROWS = [row(1, 70.4, 413), row(4, 69.8, 218), row(16, 64.6, 120), row(200, 47.9, 59)]


@pytest.mark.parametrize(("max_drop", "n"), [(0, 1), (0.5, 1), (0.7, 4), (2, 4), (6, 16), (100, 200)])
def test_the_fastest_that_loses_no_more(max_drop: float, n: int) -> None:
    assert advise(ROWS, max_drop).n == n


def test_the_sentence_and_its_reasons() -> None:
    advice = advise(ROWS, 2)
    assert advice.sentence == (
        "Take n = 4: it ends after 218 h, 1.9 times faster than plain federated learning (n = 1), "
        "and loses 0.6 points of accuracy (69.8 % instead of 70.4 %)."
    )
    reasons = " ".join(advice.reasons)
    assert "n = 16 would be faster still (120 h), but loses 5.8 points" in reasons
    assert "2,180 CPU hours instead of 4,130" in reasons
    assert "spread" not in reasons
    assert "seed" not in reasons


def test_doubts_are_listed() -> None:
    unsure = [row(1, 70, 10, student_accuracy_spread=3.0), row(2, 69, 5)]
    assert "The difference in accuracy is smaller than the spread over seeds" in " ".join(advise(unsure).reasons)
    lonely = advise([row(1, 70, 10, seeds=1), row(2, 69, 5, cut_off=2)]).reasons
    assert any("One seed only for n = 1" in reason for reason in lonely)
    assert any("max_rounds stopped cohorts before" in reason and "n = 2" in reason for reason in lonely)


def test_without_plain_federated_learning() -> None:
    advice = advise([row(2, 69, 9), row(4, 68, 5), row(8, 50, 2)])
    assert advice.n == 4
    assert "n = 2, the most accurate here" in advice.sentence
    assert any("no finished run with n = 1" in reason for reason in advice.reasons)


def test_nothing_to_choose_between() -> None:
    assert advise([]).n is None
    only = advise([row(4, 68, 5)])
    assert only.n is None
    assert "Only n = 4" in only.sentence


def test_a_drop_just_above_the_limit_does_not_look_like_it() -> None:
    advice = advise([row(1, 70, 10), row(2, 69, 9.6), row(4, 67.96, 5)], 2)
    assert "hardly sooner than plain federated learning" in advice.sentence
    assert any(
        "loses 2.04 points of accuracy (67.96 % instead of 70.00 %), more than 2 points" in r for r in advice.reasons
    )


def test_a_gain_is_called_one() -> None:
    assert "gains 1.0 points" in advise([row(1, 70, 10), row(2, 71, 5)]).sentence


@pytest.mark.parametrize("max_drop", [-1.0, float("nan"), float("inf"), 101.0])
def test_a_max_drop_that_is_none(max_drop: float) -> None:
    with pytest.raises(SettingError, match=r"max_drop = .* points of accuracy, 0 to 100"):
        check_max_drop(max_drop)


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12)


@given(POINTS)
def test_the_pareto_front_is_what_no_point_beats(pairs: list[tuple[int, int]]) -> None:
    front = pareto({"hours": hours, "accuracy": accuracy} for hours, accuracy in pairs)
    unbeaten = {
        (h, a) for h, a in pairs if not any((x <= h and y >= a) and (x, y) != (h, a) for x, y in pairs)
    }  # the definition
    assert {(p["hours"], p["accuracy"]) for p in front} == unbeaten
