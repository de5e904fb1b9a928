"""The rule joint: where it stops on curves with a known derivative, what evaluations cost, and sessions that wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpfl.devices.fleet import Fleet
from cpfl.federation import stopping
from cpfl.federation.session import ClientResult, ClosedRound, RoundResult, Session
from cpfl.federation.stopping import (
    FEWEST,
    Point,
    Share,
    client_evaluation_cost,
    converged,
    gain_per_doubling,
    server_evaluation_cost,
)
from cpfl.settings import Experiment, experiment_file

PHASE = 7.0  # CPU hours


def curve(value: Callable[[float], float], phases: int = 200, phase: float = PHASE) -> list[Point]:
    return [(phase * k, value(phase * k)) for k in range(1, phases + 1)]


@given(st.floats(-20, 20), st.floats(0.001, 1e5), st.integers(4, 12), st.integers(FEWEST, 30))
def test_a_line_has_its_own_slope_at_any_scale(gain: float, phase: float, window: int, evaluations: int) -> None:
    points = curve(lambda spent: 30 + gain * math.log2(spent), evaluations, phase)
    assert gain_per_doubling(points, window) == pytest.approx(gain, abs=1e-6)


def test_the_slope_is_that_of_least_squares() -> None:
    points = [(float(k**2), v) for k, v in enumerate([3.0, 9.0, 7.0, 14.0, 13.0, 20.0, 12.0], 1)]
    for window in (4, 5, 20):
        x, y = np.array(points[-window:]).T
        assert gain_per_doubling(points, window) == pytest.approx(np.polyfit(np.log2(x), y, 1)[0])
    assert gain_per_doubling(points[: FEWEST - 1], 6) is None


# Saturating curves, and the CPU hours at which twice the work gains `gain` points by their derivative.
CURVES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "hyperbola": (lambda c: 70 - 400 / c, lambda gain: 400 * math.log(2) / gain),
    "bent line": (lambda c: 5 + 12 * math.log2(c) - 0.5 * math.log2(c) ** 2, lambda gain: 2 ** (12 - gain)),
    "power": (lambda c: 90 - 200 * c**-0.5, lambda gain: (100 * math.log(2) / gain) ** 2),
}


def replayed(points: list[Point], gain: float, window: int) -> int | None:
    """The evaluation (counted from 1) after which the rule stops."""
    return next((k for k in range(1, len(points) + 1) if converged(points[:k], gain, window)), None)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("gain", [2.0, 4.0, 6.0])
@pytest.mark.parametrize("window", [4, 6, 9])
def test_stops_where_the_derivative_crosses(name: str, gain: float, window: int) -> None:
    """A line through the last evaluations has the slope of their middle: half of them later it is found out."""
    value, crossing = CURVES[name]
    points = curve(value, 1200)
    stop = replayed(points, gain, window)
    assert stop is not None
    true = max(crossing(gain) / PHASE, FEWEST)
    assert true - 1 <= stop - window / 2 <= true + 1


def test_continues_while_it_pays() -> None:
    points = curve(lambda c: 10 * math.log2(c))
    assert replayed(points, 9.99, 6) is None
    assert replayed(points, 10.01, 6) == FEWEST + 1
    assert not any(converged(points[:k], 1000, 6) for k in range(FEWEST + 1))  # too few to say
    assert replayed(curve(lambda c: -10 * math.log2(c)), 0, 6) is None  # only limits end it, come what may


def test_a_flat_beginning_is_no_end() -> None:
    """Nothing, a steep rise, then nothing: an S over the logarithm of the work."""
    points = curve(lambda c: 80 / (1 + math.exp(-2 * (math.log2(c) - 7))))
    rise = 2**7 / PHASE
    stop = replayed(points, 4, 6)
    assert stop is not None
    assert stop > 2 * rise
    assert gain_per_doubling(points[:FEWEST], 6) < 4  # type: ignore[operator]


def test_what_an_evaluation_by_clients_costs() -> None:
    """Two of three clients evaluate three models, of which they lack some: one computes slowly, one is slow to load."""
    fleet = Fleet(np.array([100.0, 7.0, 1000.0]), np.array([1.0, 9.0, 10.0]))  # ms a sample; kbit/s, 128 bytes/s each
    cost = client_evaluation_cost(fleet, np.array([0, 2]), np.array([5, 4]), 3, np.array([2560, 3840]))
    assert cost.cpu_seconds == pytest.approx(3 * 5 * 0.1 + 3 * 4 * 1.0)
    assert cost.seconds == pytest.approx(max(1.5 + 20.0, 12.0 + 3.0))
    assert cost.bytes == 2560 + 3840
    alone = client_evaluation_cost(fleet, np.array([0, 2]), np.array([5, 4]), 1, np.array([0, 0]))
    assert (alone.seconds, alone.cpu_seconds, alone.bytes) == (4.0, 4.5, 0)


def test_what_an_evaluation_by_servers_costs() -> None:
    cost = server_evaluation_cost(5000)
    assert (cost.seconds, cost.cpu_seconds, cost.bytes) == (0.0, 0.0, 5000)


def session(**changes: Any) -> Session:
    """Two of four clients; a round takes 3 s of computing by each and 2 s of transfers."""
    base = {
        "clients": 4,
        "cohorts": 2,
        "federation.batch_size": 1,
        "stopping.rule": "joint",
        "stopping.eval_interval": 3,
    }
    experiment = experiment_file.with_settings(
        Experiment(), base | {k.replace("__", "."): v for k, v in changes.items()}
    )
    fleet = Fleet(np.full(4, 1000.0), np.ones(4))
    return Session(0, [0, 1], experiment, fleet, 128, {"w": torch.zeros(1)})


def close(one: Session, validation: float = 1.0) -> ClosedRound:
    work = one.open_round()
    results = [ClientResult(client, 1, 1, 1.0, validation) for client in work.participants]
    return one.close_round(RoundResult({"w": torch.tensor([float(work.round)])}, results))


def phase(one: Session) -> ClosedRound:
    while True:
        closed = close(one)
        if one.idle:
            return closed


def test_a_session_waits_at_the_end_of_a_phase() -> None:
    one = session()
    closed = phase(one)
    assert (one.round, one.waiting, one.stopped, closed.record.stop) == (3, True, "", "")
    assert one.participants(3)
    assert one.participants(4) == []  # engines ask ahead
    with pytest.raises(AssertionError):
        one.open_round()
    reported = one.continue_training(closed, 100.0, Share(1.5, 0))
    assert (one.waiting, one.clock, one.cpu_seconds) == (False, 100.0, 18.0 + 1.5)
    assert reported == closed  # the round ended when it did
    assert one.participants(4)
    assert close(one).record.clock == 105.0
    end = phase(one)
    assert one.round == 6
    last = one.stop(end, "joint", 200.0)
    assert (one.stopped, one.waiting, one.idle, one.clock) == ("joint", False, True, 200.0)
    assert (last.record.stop, last.record.clock) == ("joint", 115.0)


def test_the_newest_model_teaches() -> None:
    one = session(stopping__window=1, stopping__keep="best")
    close(one, 1.0)
    close(one, 2.0)
    one.stop(close(one, 3.0), "joint", 50.0)
    assert one.best_round == 1
    assert one.teacher()["w"].item() == 3.0


def test_a_limit_within_a_phase_stops_at_once() -> None:
    one = session(stopping__max_hours=11 / 3600)
    assert phase(one).record.stop == "hours"
    assert (one.round, one.waiting) == (2, False)


def test_a_limit_that_the_wait_has_used_up() -> None:
    """Three rounds end after 15 s, the evaluation after 37 s: the next round would end after 42 s."""
    for hours, stop in ((41.9, "hours"), (42.0, "")):
        one = session(stopping__max_hours=hours / 3600)
        reported = one.continue_training(phase(one), 37.0, Share(0.0, 0))
        assert reported.record.stop == one.stopped == stop


def test_cpu_hours_pay_for_evaluations() -> None:
    """Half of 72 s is this cohort's at first; three rounds took 18 s, a fourth takes 6 s. Then it is shared anew."""
    for allowed, stop in ((36.0, "cpu hours"), (36.1, "")):
        one = session(stopping__max_cpu_hours=72 / 3600)
        assert one.cpu_budget == 36.0
        assert one.continue_training(phase(one), 20.0, Share(12.1, 0, allowed)).record.stop == stop
        other = session(stopping__max_cpu_hours=72 / 3600)
        other.restore(*one.state())
        assert other.cpu_budget == allowed


def test_a_limit_is_shared_by_what_rounds_cost() -> None:
    """Rounds cost 1, 2 and 3 s. 72 s are left, of which an evaluation needs 12. Ten more rounds for each if a phase has
    no more than that, otherwise twelve, without an evaluation."""
    spent, costs = [5.0, 6.0, 7.0], [1.0, 2.0, 3.0]
    assert stopping.share_budget(72.0, 12.0, 10, spent, costs) == [15.0, 26.0, 37.0]
    assert stopping.share_budget(72.0, 12.0, 11, spent, costs) == [17.0, 30.0, 43.0]
    assert stopping.share_budget(-1.0, 12.0, 10, spent, costs) == spent


@pytest.mark.parametrize(("snapshots", "expected"), [("1 rounds", [3]), ("20s", [3]), ("90s", []), ("", [])])
def test_models_that_a_wait_makes_due(snapshots: str, expected: list[int]) -> None:
    """A cohort arrives after 15 s and continues at 70 s: its model was the current one at 20, 40 and 60 s."""
    one = session(snapshots=snapshots)
    reported = one.continue_training(phase(one), 70.0, Share(0.0, 0))
    assert [(s.round, s.clock) for s in reported.snapshots] == [(number, 15.0) for number in expected]
    last = one.stop(phase(one), "joint", 86.0)
    assert [s.round for s in last.snapshots if s.round == 6] == ([6] if snapshots else [])


def test_a_checkpoint_knows_the_phase() -> None:
    one = session()
    one.continue_training(phase(one), 100.0, Share(1.0, 0))
    other = session()
    other.restore(*one.state())
    assert (other.phases, other.clock, other.waiting) == (1, 100.0, False)
    assert phase(other).record == phase(one).record
