"""Which slot of a cluster takes which run, and what becomes of runs whose processes die."""

from __future__ import annotations

from pathlib import Path

from cpfl.sweeps.run_queue import RunQueue

A, B, C, D = map(Path, "abcd")
ALL = [A, B, C, D]


def test_a_slot_takes_its_own_runs_and_when_it_has_none_those_of_the_slot_with_the_most() -> None:
    queue = RunQueue([[A], [B, C], []], steals=True)
    assert queue.take(0, ALL) == A
    assert queue.take(0, ALL) is None  # it has something to do
    queue.report(0, ("end", A, None))
    assert queue.take(0, ALL) == B
    assert queue.take(2, ALL) == C
    assert queue.take(1, ALL) is None
    assert queue.events() == [("end", A, None)]
    assert queue.events() == []


def test_in_lanes_every_slot_has_its_own_runs() -> None:
    queue = RunQueue([[A, B], []], steals=False)
    assert queue.take(1, ALL) is None
    assert queue.take(0, [B]) == B  # a group of runs that share lanes
    assert queue.take(0, [B]) is None
    assert queue.take(0, ALL) == A


def test_runs_of_a_dead_process_are_made_again_or_alone() -> None:
    queue = RunQueue([[A, B, C], []], steals=True)
    assert [queue.take(0, ALL), queue.take(0, ALL)] == [A, B]
    assert queue.lost(0) == [A, B]
    alone = queue.add([A])
    assert queue.put_back(0, [B])
    assert queue.take(0, ALL) == B
    assert queue.take(1, ALL) == C
    queue.report(1, ("end", C, None))
    assert queue.take(1, ALL) is None  # nobody takes a run that is to be alone
    assert queue.take(alone, ALL) == A


def test_a_process_that_dies_before_it_takes_a_run_would_have_made_the_first_one() -> None:
    queue = RunQueue([[A, B]], steals=True)
    assert queue.lost(0) == [A]
    assert queue.drop(0) == [B]
    assert queue.lost(0) == []
    assert not queue.put_back(0, [])
