"""Rounds in which something goes wrong, by hand: deadlines, over-selection, crashes, absence, repeats and waste."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import Command
from tests.federation.cohorts import MODEL_BYTES, close, session

from cpfl.devices.availability import AvailabilitySchedule
from cpfl.errors import CpflError, SettingError
from cpfl.federation.rounds.plan import ClientOutcome
from cpfl.federation.rounds.synchronous import attempt
from cpfl.federation.session import RoundRecord
from cpfl.randomness import stream

FAST = [1000.0] * 4
STALE = {"federation__participants": 2, "federation__over_selection": 1.0, "federation__straggler_policy": "stale"}
SAMPLES = [2, 4, 6, 20]  # 6, 12, 18 and 60 s of computing, and 2 s for two transfers: 8, 14, 20 and 62 s


def reported(record: RoundRecord) -> tuple[Any, ...]:
    return (record.participants, record.seconds, record.slowest, record.cpu_seconds, record.bytes)


def wasted(record: RoundRecord) -> tuple[float, int, int]:
    return (record.wasted_cpu_seconds, record.wasted_bytes // MODEL_BYTES, record.repeats)


def test_a_deadline_that_nobody_misses_changes_nothing() -> None:
    plain, held = session(SAMPLES, FAST), session(SAMPLES, FAST, federation__deadline=1000)
    for _ in range(3):
        assert close(held, SAMPLES).record == close(plain, SAMPLES).record


def test_late_clients_are_dropped() -> None:
    record = close(session(SAMPLES, FAST, federation__deadline=30), SAMPLES).record
    # The last one has computed from second 1 to second 30, was sent the model and sent nothing back.
    assert reported(record) == ([0, 1, 2], 30.0, 3, 6 + 12 + 18 + 29.0, (3 * 2 + 1) * MODEL_BYTES)
    assert wasted(record) == (29.0, 1, 0)


def test_an_exact_deadline_is_met() -> None:
    record = close(session(SAMPLES, FAST, federation__deadline=62), SAMPLES).record
    assert reported(record)[:3] == ([0, 1, 2, 3], 62.0, 3)
    assert wasted(record) == (0.0, 0, 0)


def test_partial_work_is_accepted() -> None:
    one = session(SAMPLES, FAST, federation__deadline=30, federation__straggler_policy="partial")
    assert one.open_round().steps == {3: 9}  # 28 s between the transfers, 3 s a step
    record = close(one, SAMPLES).record
    assert reported(record) == ([0, 1, 2, 3], 29.0, 3, 6 + 12 + 18 + 27.0, 8 * MODEL_BYTES)
    assert record.samples == 2 + 4 + 6 + 9
    assert wasted(record) == (0.0, 0, 0)


def test_who_cannot_do_one_step_in_time_is_dropped() -> None:
    one = session([2, 2], [1000.0, 20_000.0], federation__deadline=10, federation__straggler_policy="partial")
    record = close(one, [2, 2]).record
    assert reported(record) == ([0], 10.0, 1, 6 + 9.0, 3 * MODEL_BYTES)
    assert wasted(record) == (9.0, 1, 0)


class Alone(ClientOutcome):
    """Not to be compared with another: among ten thousand, everybody with everybody would take seconds a round."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("outcomes were compared")

    __hash__ = None  # type: ignore[assignment]


def test_an_attempt_compares_nobody_with_everybody() -> None:
    outcomes = [Alone(client, 1, float(client % 7), client % 5 > 0, 1.0, 0.0) for client in range(100)]
    one = attempt(outcomes, 50, 0.0)
    assert [outcome.client for outcome in one.counted] == [
        outcome.client
        for outcome in outcomes
        if outcome.arrives and (outcome.lasts, outcome.client) <= (one.seconds, one.slowest)
    ]
    assert len(one.counted) == len(one.others) == 50
    assert not {outcome.client for outcome in one.counted} & {outcome.client for outcome in one.others}


def test_the_first_to_finish_count() -> None:
    one = session(SAMPLES, FAST, federation__participants=2, federation__over_selection=1.0)
    record = close(one, SAMPLES).record
    # All four are asked; the round ends after 14 s, when the other two have computed for 13 s each.
    assert reported(record) == ([0, 1], 14.0, 1, 6 + 12 + 13 + 13.0, (2 * 2 + 2) * MODEL_BYTES)
    assert wasted(record) == (26.0, 2, 0)


@pytest.mark.parametrize("more", [{}, {"federation__deadline": 1000.0}])
def test_a_batch_size_above_all_clients_samples_takes_the_time_of_these(more: dict[str, float]) -> None:
    """Else every batch takes the time of a full one, as in the paper."""
    one = session([5, 16, 20], [1000.0] * 3, federation__batch_size=16, **more)
    record = close(one, [1, 1, 2]).record
    assert (record.seconds, record.cpu_seconds) == (2 + 3.0 * 32, 3.0 * (16 + 16 + 32))
    one = session([5, 16, 20], [1000.0] * 3, federation__batch_size=10**6, **more)
    record = close(one, [1, 1, 1]).record
    assert (record.seconds, record.cpu_seconds) == (2 + 3.0 * 20, 3.0 * (5 + 16 + 20))


@pytest.mark.parametrize(("share", "selected"), [(0.0, 10), (0.1, 11), (0.3, 13), (0.25, 13), (5, 20)])
def test_how_many_are_selected(share: float, selected: int) -> None:
    """Ten are needed of twenty equal clients: who is asked too much has computed all but its way back."""
    one = session([1] * 20, [1000.0] * 20, federation__participants=10, federation__over_selection=share)
    record = close(one, [1] * 20).record
    assert len(record.participants) == 10
    assert record.wasted_cpu_seconds == pytest.approx(3.0 * (selected - 10))


def crashes(client: int, round: int, attempt: int, rate: float) -> float | None:
    """After which share of its work a client crashes; by the address alone."""
    rng = stream(90, "crash", client, round, attempt)
    return float(rng.random()) if rng.random() < rate else None


def test_crashes_and_repeats_are_accounted() -> None:
    """An independent walk through twenty rounds: every attempt asks all four, three must come back."""
    one = session(SAMPLES, FAST, devices__crash_rate=0.3, federation__min_results=3, seed=90)
    repeated = 0
    for round in range(1, 21):
        seconds = cpu = waste = 0.0
        sent = lost_bytes = attempt = 0
        while True:
            outcome = {c: crashes(c, round, attempt, 0.3) for c in range(4)}
            ends = {c: 3.0 * SAMPLES[c] + 2 if f is None else 1 + f * 3 * SAMPLES[c] for c, f in outcome.items()}
            back = [c for c in range(4) if outcome[c] is None]
            seconds += max(ends.values())
            lost = [c for c in range(4) if c not in back or len(back) < 3]
            waste += sum(3.0 * SAMPLES[c] * (1 if outcome[c] is None else outcome[c]) for c in lost)
            lost_bytes += sum(2 if outcome[c] is None else 1 for c in lost)
            if len(back) >= 3:
                break
            attempt += 1
        cpu = waste + sum(3.0 * SAMPLES[c] for c in back)
        sent = lost_bytes + 2 * len(back)
        record = close(one, SAMPLES).record
        assert record.participants == back
        assert (record.seconds, record.cpu_seconds) == pytest.approx((seconds, cpu))
        assert record.bytes == sent * MODEL_BYTES
        assert wasted(record) == (pytest.approx(waste), lost_bytes, attempt)
        repeated += attempt
    assert repeated > 3


def test_a_round_that_never_succeeds_is_given_up() -> None:
    here = [AvailabilitySchedule((0.0,), (1e5,), 1e5)] * 4  # clients that may be away are looked at in rounds only
    one = session(SAMPLES, FAST, here, federation__deadline=10, federation__min_results=2)
    with pytest.raises(CpflError, match=r"federation.min_results = 2 .*deadline"):
        one.open_round()


def test_a_minimum_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match=r"federation.min_results = 3 is more than the 2"):
        session(SAMPLES, FAST, federation__participants=2, federation__min_results=3, devices__crash_rate=0.1)


def test_clients_come_and_go() -> None:
    """Times in seconds of a period of 1000. Each has two steps of 3 s and transfers of 1 s: 8 s."""
    weeks = [
        AvailabilitySchedule((0.0,), (15.0,), 1000.0),  # there for one round
        AvailabilitySchedule((0.0,), (1000.0,), 1000.0),  # always
        AvailabilitySchedule((10.0,), (30.0,), 1000.0),  # comes later
    ]
    one = session([2, 2, 2], [1000.0] * 3, weeks)
    first, second, third = (close(one, [2, 2, 2]).record for _ in range(3))
    assert reported(first) == ([0, 1], 8.0, 1, 12.0, 4 * MODEL_BYTES)
    # Begins at 8 with the same two; the first leaves at 15, before it is done: 6 s of computing for nothing.
    assert reported(second) == ([1], 8.0, 1, 6 + 6.0, 3 * MODEL_BYTES)
    assert wasted(second) == (6.0, 1, 0)
    assert reported(third)[0] == [1, 2]  # begins at 16


def test_waits_until_somebody_is_there() -> None:
    one = session([2, 2], [1000.0] * 2, [AvailabilitySchedule((50.0,), (70.0,), 1000.0)] * 2)
    first, second = close(one, [2, 2]).record, close(one, [2, 2]).record
    assert (first.seconds, first.clock) == pytest.approx((58.0, 58.0))
    assert second.clock == pytest.approx(66.0)
    third = close(one, [2, 2]).record  # both leave at 70, 4 s in: 3 s of computing each, then a wait of 980 s
    assert third.clock == pytest.approx(1058.0)
    assert wasted(third) == (pytest.approx(6.0), 2, 1)


def test_stale_updates_count_later() -> None:
    """Two are needed of four; the slower ones go on: 20 s and 62 s, while rounds of 14 s, … end without them."""
    one = session(
        SAMPLES, FAST, federation__participants=2, federation__over_selection=1.0, federation__straggler_policy="stale"
    )
    first = close(one, SAMPLES).record
    assert reported(first) == ([0, 1], 14.0, 1, 18.0, 4 * MODEL_BYTES)
    work = one.open_round()
    # Only 0 and 1 are idle; the round lasts from 14 to 28, and the third arrives at 20.
    assert work.participants == [0, 1, 2]
    assert (work.origins[2].round, work.origins[2].model["w"].item(), work.aggregation) == (1, 0.0, "refl")
    second = close(one, SAMPLES).record
    assert (second.stale, second.seconds, second.cpu_seconds) == (1, 14.0, 36.0)
    third = close(one, SAMPLES).record  # 28 to 42, all but the last, whose work outlasts it
    assert (third.participants, third.stale) == ([0, 1], 0)
    records = [close(one, SAMPLES).record for _ in range(3)]
    joined = [record for record in records if 3 in record.participants]
    assert [record.stale for record in joined] == [2 if 2 in record.participants else 1 for record in joined]
    assert joined[0].clock - joined[0].seconds < 62 <= joined[0].clock


def test_too_old_is_waste() -> None:
    one = session(
        SAMPLES, FAST, federation__participants=2, federation__over_selection=1.0, federation__straggler_policy="stale",
        federation__max_staleness=1,
    )  # fmt: skip
    records = [close(one, SAMPLES).record for _ in range(3)]
    assert [3 in record.participants for record in records] == [False] * 3
    assert wasted(records[2])[0] == pytest.approx(
        records[2].clock - 1
    )  # it computed from second 1 until the round ended


def test_what_is_pending_at_the_end_is_waste() -> None:
    one = session(
        SAMPLES, FAST, federation__participants=2, federation__over_selection=1.0, federation__straggler_policy="stale",
        max_rounds=1,
    )  # fmt: skip
    record = close(one, SAMPLES).record
    assert record.stop == "max rounds"
    assert wasted(record) == (26.0, 2, 0)
    assert (one.cpu_seconds, record.cpu_seconds, record.bytes) == (44.0, 44.0, 6 * MODEL_BYTES)


def test_rounds_that_can_be_known_ahead_are() -> None:
    plain = session(SAMPLES, FAST, federation__participants=2)
    held = session(SAMPLES, FAST, federation__participants=2, federation__deadline=30, devices__crash_rate=0.5)
    assert plain.participants(5)
    ahead = [held.participants(number) for number in range(1, 9)]
    assert all(ahead)
    assert [close(held, SAMPLES).record.participants for _ in range(8)] == ahead


def test_rounds_that_cannot_be_known_ahead_are_not() -> None:
    one = session(SAMPLES, FAST, federation__participants=2, federation__selection="oort")
    assert one.participants(1)
    assert one.participants(2) == []
    close(one, SAMPLES)
    assert one.participants(2)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5), st.integers(1, 4), st.data())
def test_samples_in_steps(held: int, batch: int, steps: int, epochs: int, data: st.DataObject) -> None:
    """Counted batch by batch."""
    from cpfl.federation import local_training
    from cpfl.settings import Federation

    federation = Federation(batch_size=batch, local_steps=steps, local_epochs=epochs)
    batches = local_training.batches(federation, held, 1, 2, 3)
    first = data.draw(st.integers(1, len(batches)))
    assert local_training.samples_in_steps(federation, held, first) == sum(len(b) for b in batches[:first])


CASES: dict[str, dict[str, Any]] = {
    "crashes": {"devices__crash_rate": 0.4, "federation__min_results": 2},
    "absence": {"federation__min_results": 3, "devices__availability": "synthetic"},
    "stale": STALE,
    "oort": {"federation__participants": 2, "federation__selection": "oort"},
    "power-of-choice": {"federation__participants": 2, "federation__selection": "power-of-choice"},
    "fedbuff": {"federation__buffer_size": 2, "federation__concurrency": 3},
    "fedbuff, crashes": {"federation__buffer_size": 2, "federation__concurrency": 3, "devices__crash_rate": 0.4},
    "refl": {
        "federation__participants": 2, "federation__selection": "refl", "devices__availability": "synthetic",
        "federation__deadline": 15, "federation__straggler_policy": "stale",
    },
}  # fmt: skip
WEEKS = [AvailabilitySchedule((0.0, 50.0), (31.0 + 3 * k, 90.0 - k), 100.0) for k in range(4)]


@pytest.mark.parametrize("case", CASES)
@given(cut=st.integers(0, 14), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_continues_from_any_round(case: str, cut: int, seed: int) -> None:
    weeks = WEEKS if case in ("refl", "absence") else None
    one, other = (session(SAMPLES, FAST, weeks, seed=seed, max_rounds=15, **CASES[case]) for _ in range(2))
    for number in range(15):
        if number == cut:
            states, numbers = one.state()
            copied = {kind: {k: v.clone() for k, v in state.items()} for kind, state in states.items()}
            other.restore(copied, json.loads(json.dumps(numbers, allow_nan=False)))
        ours, work = close(one, SAMPLES), None
        if number >= cut:
            work = other.open_round()
            assert close(other, SAMPLES).record == ours.record
            assert work.participants == ours.record.participants
    assert one.stopped == "max rounds"


@pytest.mark.parametrize("policy", ["drop", "partial", "stale"])
def test_a_deadline_that_nobody_can_meet_is_refused_at_the_start(policy: str) -> None:
    """Round numbers of seconds: 8 for two steps, 5 for one, with 2 for the transfers."""
    shortest = 5 if policy == "partial" else 8
    changes = {"federation__straggler_policy": policy}
    with pytest.raises(SettingError) as refused:
        session([2, 4], [1000.0] * 2, federation__deadline=shortest - 0.5, **changes)
    assert str(refused.value) == (
        f"federation.deadline = {shortest - 0.5} is too short: the shortest possible round of cohort 0 lasts "
        f"{shortest}.00 virtual seconds"
    )
    assert close(session([2, 4], [1000.0] * 2, federation__deadline=shortest, **changes), [2, 4])
    with pytest.raises(SettingError, match=r"with federation.min_results = 2 lasts (14|5)\.00 virtual seconds"):
        session([2, 4], [1000.0] * 2, federation__deadline=4.9, federation__min_results=2, **changes)


def test_a_short_deadline_is_refused_before_anything_is_written(cpfl_command: Command, tmp_path: Path) -> None:
    answer = cpfl_command("run", "digits", "--set", "federation.deadline=0.01", "--out", "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert "federation.deadline = 0.01 is too short: the shortest possible round of cohort 0 lasts" in answer.err
    assert not (tmp_path / "run").exists()
