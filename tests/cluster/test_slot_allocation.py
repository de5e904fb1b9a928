"""How many slots of a cluster each run of a sweep gets."""

from __future__ import annotations

import pytest

from cpfl.settings import Experiment, experiment_file
from cpfl.sweeps import slots

DIGITS = experiment_file.load("digits")


def run(rounds: int = 100, cohorts: int = 4) -> Experiment:
    return experiment_file.with_settings(DIGITS, {"max_rounds": rounds, "cohorts": cohorts})


def equal(count: int, **words: int) -> dict[str, Experiment]:
    return {str(k): run(**words) for k in range(count)}


def test_a_run_gets_its_share_of_the_cluster() -> None:
    assert slots.allocate({"a": run(10), "b": run(70)}, 8) == {"a": 1, "b": 4}  # no more than its cohorts
    assert slots.allocate(equal(2, cohorts=1), 8) == {"0": 1, "1": 1}
    assert set(slots.allocate(equal(24), 8).values()) == {1}
    assert slots.allocate({}, 8) == {}


def test_none_is_idle_at_the_end_of_twelve_runs_on_eight_slots() -> None:
    runs = equal(12)
    found = slots.allocate(runs, 8)
    assert sorted(found.values()) == [1] * 8 + [2] * 4
    assert set(slots.order(runs, found)[:4]) == {name for name, count in found.items() if count == 2}
    alone = slots.duration(runs, dict.fromkeys(runs, 1), 8)
    assert slots.duration(runs, found, 8) == 0.75 * alone
    assert set(slots.allocate(equal(12, cohorts=1), 8).values()) == {1}  # cohorts are not split


def test_the_allocation_never_takes_longer_than_a_slot_for_each_run() -> None:
    for total in (2, 3, 8, 13):
        for count in range(1, 40):
            runs = {str(k): run(50 + 37 * k % 100, 1 + k % 6) for k in range(count)}
            found = slots.allocate(runs, total)
            assert all(1 <= size <= min(total, runs[name].cohorts) for name, size in found.items())
            assert slots.duration(runs, found, total) <= slots.duration(runs, dict.fromkeys(runs, 1), total) + 1e-6


def test_a_thousand_slots_are_allocated_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is looked at about a hundred times, however many there are."""
    runs, looks, cost = equal(3500), 0, slots.cost

    def counted(experiment: Experiment) -> float:
        nonlocal looks
        looks += 1
        return cost(experiment)

    monkeypatch.setattr(slots, "cost", counted)
    found = slots.allocate(runs, 1000)
    assert looks < 150 * len(runs)
    assert slots.duration(runs, found, 1000) < 0.95 * slots.duration(runs, dict.fromkeys(runs, 1), 1000)


def test_runs_fill_the_cores_of_nodes_and_are_spread_only_over_nodes_that_would_have_none() -> None:
    assert set(slots.allocate(equal(4, cohorts=40), 4, cores=8).values()) == {1}
    assert slots.allocate(equal(2, cohorts=40), 4, cores=8) == {"0": 2, "1": 2}
    assert slots.allocate(equal(2, cohorts=4), 4, cores=8) == {"0": 1, "1": 1}  # not even the cores of one node


def test_slots_get_runs_by_their_cost_and_their_cores() -> None:
    runs = {"a": run(40), "b": run(30), "c": run(20), "d": run(10)}
    assert slots.distribute(runs, [1, 1]) == [["a", "d"], ["b", "c"]]
    assert slots.distribute(runs, [4, 1]) == [["a", "b", "d"], ["c"]]
    assert slots.distribute(equal(3), [1, 1, 1, 1]) == [["0"], ["1"], ["2"], []]
