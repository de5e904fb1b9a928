"""The plateau rule and the limits."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpfl.federation.stopping import StoppingRule, limit_reached
from cpfl.settings import Stopping
from cpfl.settings.choices import STOPPING_RULES

Reports = st.lists(st.none() | st.floats(-100, 100), max_size=60)


@given(Reports, st.integers(1, 8))
def test_average_and_minimum(reports: list[float | None], window: int) -> None:
    """Written out: the mean of the last `window` reports, and when it was last lower than ever before."""
    rule = StoppingRule(Stopping(window=window))
    values: list[float] = []
    averages: list[float] = []
    best_round = 0
    for number, report in enumerate(reports, 1):
        average, best, _ = rule.update(number, report, 0.0, 0.0)
        if report is not None:
            values.append(report)
        if not values:
            assert (average, best) == (None, False)
            continue
        recent = values[-window:]
        assert average == pytest.approx(sum(recent) / len(recent), rel=1e-12, abs=1e-12)
        assert average is not None
        assert best == (average < min(averages, default=math.inf))
        averages.append(average)
        best_round = number if best else best_round
        assert rule.best_round == best_round


@given(Reports, st.integers(1, 8), st.integers(0, 60))
def test_state(reports: list[float | None], window: int, cut: int) -> None:
    one, other = (StoppingRule(Stopping(window=window)) for _ in range(2))
    for number, report in enumerate(reports, 1):
        if number - 1 == cut:
            other.restore(json.loads(json.dumps(one.state(), allow_nan=False)))
        answer = one.update(number, report, 0.0, 0.0)
        if number - 1 >= cut:
            assert other.update(number, report, 0.0, 0.0) == answer
            assert other.best_round == one.best_round


def test_a_state_is_not_changed_by_continuing() -> None:
    rule = StoppingRule(Stopping(window=2))
    rule.update(1, 1.0, 0.0, 0.0)
    state = rule.state()
    before = json.dumps(state)
    rule.update(2, 0.5, 0.0, 0.0)
    assert json.dumps(state) == before
    other = StoppingRule(Stopping(window=2))
    other.restore(state)
    other.update(2, 0.1, 0.0, 0.0)
    assert json.dumps(state) == before


def test_an_equal_average_is_no_new_minimum() -> None:
    rule = StoppingRule(Stopping(window=1))
    assert [rule.update(i, 1.0, 0.0, 0.0).best for i in (1, 2, 3)] == [True, False, False]
    assert rule.best_round == 1


def reason(
    stopping: Stopping,
    *,
    round: int = 10,
    best: int = 10,
    clock: float = 0.0,
    cpu: float = 0.0,
    last: tuple[float, float] = (0.0, 0.0),
    allowed: float = math.inf,
    max_rounds: int = 1000,
) -> str:
    rule = STOPPING_RULES.build(stopping.rule, stopping.rule_args, stopping)
    if best:
        rule.update(best, 1.0, 0.0, 0.0)
    decision = rule.update(round, None, clock, cpu)
    return decision.stop or limit_reached(stopping, max_rounds, round, clock + last[0], cpu + last[1], allowed)


def test_patience() -> None:
    stopping = Stopping(patience=5)
    assert reason(stopping, round=14, best=10) == ""
    assert reason(stopping, round=15, best=10) == "plateau"
    assert reason(stopping, round=4, best=0) == ""
    assert reason(stopping, round=5, best=0) == "no validation signal"


def test_other_rules_do_not_look_at_the_plateau() -> None:
    assert reason(Stopping(rule="rounds", rounds=100, patience=1), round=99, best=1) == ""
    assert reason(Stopping(rule="rounds", rounds=100, patience=1), round=100, best=1) == "rounds"
    assert reason(Stopping(rule="budget", max_hours=1, patience=1), round=500, best=1) == ""


def test_limits_go_with_any_rule() -> None:
    for stopping in (
        Stopping(max_hours=1),
        Stopping(rule="rounds", rounds=100, max_hours=1),
        Stopping(rule="budget", max_hours=1, max_cpu_hours=9),
    ):
        assert reason(stopping, clock=3500.0, last=(100.0, 1.0)) == ""
        assert reason(stopping, clock=3500.0, last=(100.5, 1.0)) == "hours"
        assert reason(stopping, clock=3600.0, last=(0.5, 1.0)) == "hours"
    for stopping in (Stopping(), Stopping(rule="rounds", rounds=100)):
        assert reason(stopping, cpu=1700.0, last=(1.0, 100.0), allowed=1800.0) == ""
        assert reason(stopping, cpu=1700.5, last=(1.0, 100.0), allowed=1800.0) == "cpu hours"
    assert reason(Stopping(), cpu=1e9, last=(1.0, 100.0), allowed=1800.0, round=1000, best=1000) == "cpu hours"


def test_max_rounds_is_the_net_below_all() -> None:
    for stopping in (Stopping(), Stopping(rule="rounds", rounds=5000), Stopping(rule="budget", max_hours=1)):
        assert reason(stopping, round=999, best=999) == ""
        assert reason(stopping, round=1000, best=1000) == "max rounds"


@given(seconds=st.floats(0.001, 5000), rounds=st.integers(1, 300))
def test_a_limit_of_k_rounds_is_k_rounds(seconds: float, rounds: int) -> None:
    """A sum of k equal floats may lie a hair above k times the float; the k-th round is done all the same."""
    stopping = Stopping(rule="budget", max_hours=rounds * seconds / 3600)
    clock, done = 0.0, 0
    while not done or not reason(stopping, round=done, best=done, clock=clock, last=(seconds, 1.0)):
        clock += seconds
        done += 1
    assert done == rounds
