"""How many slots of a cluster each run of a sweep gets."""

from __future__ import annotations

import time

from cpfl import experiment_file
from cpfl.experiment import Experiment
from cpfl.sweep import widths

DIGITS = experiment_file.load("digits")


def run(rounds: int = 100, cohorts: int = 4) -> Experiment:
    return experiment_file.with_settings(DIGITS, {"max_rounds": rounds, "cohorts": cohorts})


def equal(count: int, **words: int) -> dict[str, Experiment]:
    return {str(k): run(**words) for k in range(count)}


def test_a_run_gets_its_part_of_the_cluster() -> None:
    assert widths.slots({"a": run(10), "b": run(70)}, 8) == {"a": 1, "b": 4}  # no more than its cohorts
    assert widths.slots(equal(2, cohorts=1), 8) == {"0": 1, "1": 1}
    assert set(widths.slots(equal(24), 8).values()) == {1}
    assert widths.slots({}, 8) == {}


def test_none_is_idle_at_the_end_of_twelve_runs_on_eight_slots() -> None:
    runs = equal(12)
    found = widths.slots(runs, 8)
    assert sorted(found.values()) == [1] * 8 + [2] * 4
    assert set(widths.order(runs, found)[:4]) == {name for name, width in found.items() if width == 2}
    alone = widths.length(runs, dict.fromkeys(runs, 1), 8)
    assert widths.length(runs, found, 8) == 0.75 * alone
    assert set(widths.slots(equal(12, cohorts=1), 8).values()) == {1}  # cohorts are not split


def test_the_plan_is_never_longer_than_a_slot_for_each_run() -> None:
    for there in (2, 3, 8, 13):
        for count in range(1, 40):
            runs = {str(k): run(50 + 37 * k % 100, 1 + k % 6) for k in range(count)}
            found = widths.slots(runs, there)
            assert all(1 <= width <= min(there, runs[name].cohorts) for name, width in found.items())
            assert widths.length(runs, found, there) <= widths.length(runs, dict.fromkeys(runs, 1), there) + 1e-6


def test_a_thousand_slots_are_planned_in_no_time() -> None:
    runs = equal(3500)
    began = time.process_time()
    found = widths.slots(runs, 1000)
    assert time.process_time() - began < 10
    assert widths.length(runs, found, 1000) < 0.95 * widths.length(runs, dict.fromkeys(runs, 1), 1000)
