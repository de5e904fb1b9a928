"""The session: clock, accounting, snapshots, the model that is kept, and continuing from any round."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpfl.devices.fleet import Fleet
from cpfl.federation.session import ClientResult, ClosedRound, RoundResult, Session
from cpfl.models.layout import ema
from cpfl.settings import Experiment, experiment_file

# A step of one sample takes 3 s on every device; 128 bytes take 1 s each way.
CLIENTS = 8
MODEL_BYTES = 128


def session(clients: list[int] | None = None, compute: list[float] | None = None, **changes: Any) -> Session:
    base = {"clients": CLIENTS, "cohorts": 2, "federation.batch_size": 1, "stopping.patience": 1000}
    settings = base | {k.replace("__", "."): v for k, v in changes.items()}
    experiment = experiment_file.with_settings(Experiment(), settings, strict=False)
    speeds = np.array(compute or [1000.0] * CLIENTS)
    fleet = Fleet(speeds, np.ones(CLIENTS))
    return Session(0, clients or [0, 1, 2, 3], experiment, fleet, MODEL_BYTES, {"w": torch.tensor([0.0])})


def close(one: Session, steps: int | list[int] = 1, validation: float | None = 1.0) -> ClosedRound:
    """A round in which every participant did so many steps and reported so much; its model is named after it."""
    work = one.open_round()
    each = steps if isinstance(steps, list) else [steps] * len(work.participants)
    results = [
        ClientResult(client, samples=5 * s, steps=s, loss=float(client), validation=validation)
        for client, s in zip(work.participants, each, strict=True)
    ]
    return one.close_round(RoundResult({"w": torch.tensor([float(work.round)])}, results))


def value(state: dict[str, torch.Tensor]) -> float:
    return state["w"].item()


def shots(closed: ClosedRound) -> list[tuple[int, float, float]]:
    """Round, clock and model of the snapshots that fell due; the start model is kept anyway."""
    return [(s.round, s.clock, value(s.model)) for s in closed.snapshots if s.round]


def test_a_round_is_accounted() -> None:
    one = session(compute=[1000.0, 2000.0, 500.0, 1000.0, 0, 0, 0, 0])
    work = one.open_round()
    assert (work.round, work.participants, value(work.model)) == (1, [0, 1, 2, 3], 0.0)
    record = close(one, [2, 2, 8, 3]).record
    # 6 s, 12 s, 12 s, 9 s of computing, and 2 s for two transfers
    assert (record.seconds, record.clock, record.slowest, record.cpu_seconds) == (14.0, 14.0, 1, 39.0)
    assert record.bytes == 4 * 2 * MODEL_BYTES
    assert record.samples == 5 * 15
    assert (record.loss, record.validation, record.reporting) == (1.5, 1.0, 4)
    assert record.participants == [0, 1, 2, 3]
    close(one, 1)
    assert (one.round, one.clock, one.cpu_seconds, one.bytes) == (2, 14.0 + 8.0, 39.0 + 13.5, 16 * MODEL_BYTES)


def test_alone_there_is_no_traffic() -> None:
    one = session(clients=[5])
    record = close(one, 4).record
    assert (record.seconds, record.cpu_seconds, record.bytes, record.slowest) == (12.0, 12.0, 0, 5)


def test_one_of_many_participants_has_traffic() -> None:
    """A cohort of four in which one takes part still sends its model around."""
    one = session(federation__participants=1)
    record = close(one, 1).record
    assert len(record.participants) == 1
    assert (record.seconds, record.bytes) == (5.0, 2 * MODEL_BYTES)


def test_rounds_rule() -> None:
    one = session(stopping__rule="rounds", stopping__rounds=3)
    assert [close(one).record.stop for _ in range(3)] == ["", "", "rounds"]
    assert one.stopped == "rounds"
    with pytest.raises(AssertionError):
        one.open_round()


def test_max_rounds() -> None:
    one = session(max_rounds=2)
    assert [close(one).record.stop for _ in range(2)] == ["", "max rounds"]


@pytest.mark.parametrize(("hours", "rounds"), [(15 / 3600, 3), (14.9 / 3600, 2), (19.9 / 3600, 3), (1 / 3600, 1)])
def test_hours(hours: float, rounds: int) -> None:
    """Rounds of 5 s: as many as fit, an exact fit too, but always one."""
    one = session(stopping__rule="budget", stopping__max_hours=hours)
    while not one.stopped:
        close(one)
    assert (one.round, one.stopped) == (rounds, "hours")


@pytest.mark.parametrize(("cpu_seconds", "rounds"), [(12 * 2 * 4, 4), (12 * 2 * 4 - 1, 3), (12 * 2 * 5 - 1, 4), (1, 1)])
def test_cpu_hours_are_shared(cpu_seconds: float, rounds: int) -> None:
    """Four of eight clients may spend half of the federation's CPU hours; a round costs them 12 s."""
    one = session(stopping__rule="budget", stopping__max_cpu_hours=cpu_seconds / 3600)
    while not one.stopped:
        close(one)
    assert (one.round, one.stopped) == (rounds, "cpu hours")


def test_limits_foresee_the_last_rounds_length() -> None:
    one = session(stopping__rule="budget", stopping__max_hours=30 / 3600)
    assert close(one, 1).record.stop == ""  # 5 s
    assert close(one, 6).record.stop == "hours"  # 25 s; another such would end at 45 s


def test_plateau_and_best() -> None:
    one = session(stopping__patience=3, stopping__window=1)
    closed = [close(one, validation=v) for v in (3.0, 1.0, 2.0, 1.0, 5.0)]
    assert [c.record.best for c in closed] == [True, True, False, False, False]
    assert (one.stopped, one.best_round, value(one.teacher())) == ("plateau", 2, 2.0)
    assert value(one.model) == 5.0


def test_keep_last() -> None:
    one = session(stopping__patience=3, stopping__window=1, stopping__keep="last")
    for v in (1.0, 2.0, 2.0, 2.0):
        close(one, validation=v)
    assert (one.stopped, one.best_round, value(one.teacher())) == ("plateau", 1, 4.0)


def test_no_signal() -> None:
    one = session(stopping__patience=3)
    closed = [close(one, validation=None) for _ in range(3)]
    assert [c.record.stop for c in closed] == ["", "", "no validation signal"]
    assert [(c.record.validation, c.record.moving_average, c.record.reporting, c.record.best) for c in closed] == [
        (None, None, 0, False)
    ] * 3
    assert value(one.teacher()) == 3.0  # the newest, there is no best


def test_signal_now_and_then() -> None:
    """Rounds in which nobody reported neither improve the average nor count as a report."""
    one = session(stopping__patience=3, stopping__window=2)
    closed = [close(one, validation=v) for v in (None, 4.0, None, 2.0, None, None, None)]
    assert [c.record.moving_average for c in closed] == [None, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0]
    assert [c.record.best for c in closed] == [False, True, False, True, False, False, False]
    assert one.stopped == "plateau"


def test_partial_reports_are_a_plain_mean() -> None:
    one = session()
    reports = [None, 1.0, 4.0, None]
    results = [ClientResult(c, 1, 1, 0.0, v) for c, v in zip(one.open_round().participants, reports, strict=True)]
    record = one.close_round(RoundResult({"w": torch.tensor([1.0])}, results)).record
    assert (record.validation, record.reporting) == (2.5, 2)


def test_no_snapshots() -> None:
    one = session(max_rounds=2)
    assert [close(one).snapshots for _ in range(2)] == [[], []]


def test_snapshots_by_rounds() -> None:
    one = session(snapshots="2 rounds", max_rounds=5)
    assert [shots(close(one)) for _ in range(5)] == [
        [],
        [(2, 10.0, 2.0)],
        [],
        [(4, 20.0, 4.0)],
        [(5, 25.0, 5.0)],  # and the last
    ]


def test_snapshots_by_hours() -> None:
    """Rounds of 5 s, a snapshot every 12 s: the model that was current then."""
    one = session(snapshots="12s", max_rounds=6)
    found = [shots(close(one)) for _ in range(6)]
    assert found == [[], [], [(2, 10.0, 2.0)], [], [(4, 20.0, 4.0)], [(6, 30.0, 6.0)]]


def test_rounds_longer_than_the_interval() -> None:
    """Rounds of 5 s, a snapshot every 2 s: each round's model was current at some multiple."""
    one = session(snapshots="2s", max_rounds=3)
    assert [shots(close(one)) for _ in range(3)] == [
        [],
        [(1, 5.0, 1.0)],
        [(2, 10.0, 2.0), (3, 15.0, 3.0)],
    ]


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    interval=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_the_model_of_every_multiple_is_kept(lengths: list[int], interval: int) -> None:
    """At every multiple of the interval the newest snapshot by then is the model that was current then.

    A round that ends exactly at the multiple had ended by then: that is how costs are counted too.
    """
    one = session(snapshots=f"{interval}s", max_rounds=len(lengths))
    ends, kept = [(0.0, 0)], [(0.0, 0)]
    for steps in lengths:
        closed = close(one, steps)
        ends.append((one.clock, one.round))
        kept += [(s.clock, s.round) for s in closed.snapshots]
        assert all(value(s.model) == s.round for s in closed.snapshots)
    for moment in range(0, int(one.clock) + interval, interval):
        current = max(round for clock, round in ends if clock <= moment)
        assert max(round for clock, round in kept if clock <= moment) == current, moment


@given(
    reports=st.lists(st.none() | st.floats(0.1, 10), min_size=2, max_size=25),
    cut=st.integers(0, 24),
    keep=st.sampled_from(["best", "last"]),
    every=st.sampled_from(["", "3 rounds", "17s"]),
    participants=st.integers(0, 4),
)
@settings(max_examples=80, deadline=None)
def test_continues_from_any_round(
    reports: list[float | None], cut: int, keep: str, every: str, participants: int
) -> None:
    """A new session with the state of another continues exactly as that one does."""
    settings = {
        "stopping__keep": keep,
        "snapshots": every,
        "federation__participants": participants,
        "stopping__window": 3,
        "stopping__patience": 6,
        "max_rounds": len(reports),
    }
    one, other = session(**settings), session(**settings)
    for number, report in enumerate(reports):
        if number == cut:
            states, numbers = one.state()
            copied = {kind: {k: v.clone() for k, v in state.items()} for kind, state in states.items()}
            other.restore(copied, json.loads(json.dumps(numbers, allow_nan=False)))
            assert value(other.teacher()) == value(one.teacher())
        if one.stopped:
            break
        closed = close(one, 1 + number % 3, report)
        if number >= cut:
            again = close(other, 1 + number % 3, report)
            assert again.record == closed.record
            assert shots(again) == shots(closed)
            assert value(other.teacher()) == value(one.teacher())
            assert other.best_round == one.best_round
    states, numbers = one.state()
    if len(reports) > cut and numbers["round"] > cut:
        assert other.state()[1] == numbers


def test_a_record_is_json() -> None:
    record = close(session(), validation=None).record
    assert json.loads(json.dumps(vars(record), allow_nan=False)) == vars(record)


def test_the_average_of_late_models() -> None:
    """Rounds' models are 1, 2, 3 …: their mean at first, then the newest counts a third."""
    one = session(stopping__keep="ema", stopping__ema_rounds=3, snapshots="1 rounds")
    expected, average = [], 0.0
    for number in range(1, 8):
        average += (number - average) / min(number, 3)
        expected.append(average)
        shown = shots(close(one, validation=10.0 - number))[-1][2]
        assert (shown, value(one.teacher())) == (pytest.approx(average), pytest.approx(average))
        if number == 4:
            other = session(stopping__keep="ema", stopping__ema_rounds=3, snapshots="1 rounds")
            other.restore(*one.state())
            one = other
    assert expected[:3] == [1.0, 1.5, 2.0]
    assert value(one.model) == 7.0  # training continues from the newest


def test_counts_are_not_averaged() -> None:
    old = {"w": torch.tensor([0.0]), "seen": torch.tensor(3)}
    found = ema(old, {"w": torch.tensor([1.0]), "seen": torch.tensor(4)}, 0.25)
    assert (found["w"].item(), found["seen"].item(), old["w"].item()) == (0.25, 4, 0.0)
