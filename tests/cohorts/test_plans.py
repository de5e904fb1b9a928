"""Plans of cohorts against brute force, chance and their own promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpfl.cohorts import CohortPlan, labels, random_plan, speeds, told
from cpfl.cohorts.measures import expected_longest, skews
from cpfl.cohorts.seats import listed
from cpfl.errors import CpflError
from cpfl.randomness import stream

Floats = NDArray[np.float64]


def world(seed: int, clients: int, classes: int = 5) -> tuple[NDArray[np.int64], Floats]:
    """Label counts of skewed clients, and the seconds of their rounds."""
    rng = np.random.default_rng(seed)
    counts = [rng.multinomial(rng.integers(1, 60), rng.dirichlet(np.full(classes, 0.3))) for _ in range(clients)]
    return np.array(counts), rng.lognormal(3, 1, clients)


def plans(seed: int, clients: int, cohorts: int) -> dict[str, CohortPlan]:
    counts, seconds = world(seed, clients)
    order = stream(seed, "cohorts").permutation(clients)

    def rng() -> np.random.Generator:
        return stream(seed, "swaps")

    return {
        "random": random_plan(clients, cohorts, seed),
        "speed": listed(speeds.fast_with_fast(seconds, cohorts, order)),
        "balanced": listed(labels.balanced(counts, cohorts, order, rng())),
        "clustered": listed(labels.clustered(counts, cohorts, order, rng())),
        "both": listed(speeds.weighed(counts, seconds, cohorts, order, rng(), 1, 1)),
    }


def skew(plan: CohortPlan, counts: NDArray[np.int64]) -> float:
    """Written out cohort by cohort."""
    whole = counts.sum(axis=0) / counts.sum()
    each = [counts[clients].sum(axis=0) / counts[clients].sum() for clients in plan]
    return float(np.mean([np.abs(share - whole).sum() / 2 for share in each]))


def rounds(plan: CohortPlan, seconds: Floats) -> float:
    return float(np.mean([seconds[clients].max() for clients in plan]))


def spread(plan: CohortPlan, counts: NDArray[np.int64]) -> float:
    """Squared distances of clients' label shares to their cohort's mean: what k-means minimises."""
    share = counts / counts.sum(axis=1, keepdims=True)
    return float(sum(((share[clients] - share[clients].mean(axis=0)) ** 2).sum() for clients in plan))


def all_plans(clients: int, cohorts: int) -> Iterator[CohortPlan]:
    """Every plan of equal sizes, some of them several times."""
    size = clients // cohorts
    for order in itertools.permutations(range(clients)):
        plan = [list(order[i * size : (i + 1) * size]) for i in range(cohorts)]
        if all(part == sorted(part) for part in plan):
            yield plan


@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
@settings(max_examples=40, deadline=None)
def test_everybody_is_somewhere_and_sizes_differ_by_one(seed: int, clients: int, data: Any) -> None:
    cohorts = data.draw(st.integers(1, clients))
    for name, plan in plans(seed, clients, cohorts).items():
        sizes = [len(part) for part in plan]
        assert sorted(k for part in plan for k in part) == list(range(clients)), name
        assert len(plan) == cohorts, name
        assert max(sizes) - min(sizes) <= 1, name
        assert all(part == sorted(part) for part in plan), name


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plans(7, 60, 7) == plans(7, 60, 7)
    other = plans(8, 60, 7)
    assert all(plan != other[name] for name, plan in plans(7, 60, 7).items())


@pytest.mark.parametrize("seed", range(3))
def test_tiny_cases_against_every_plan(seed: int) -> None:
    """Eight clients in two cohorts: swaps find the best balance and the best weighing, the sort the shortest rounds."""
    counts, seconds = world(seed, 8)
    found, every = plans(seed, 8, 2), list(all_plans(8, 2))
    assert len(every) == 70

    def cost(plan: CohortPlan) -> float:
        return skew(plan, counts) + rounds(plan, seconds) / seconds.max()

    assert rounds(found["speed"], seconds) == min(rounds(plan, seconds) for plan in every)
    assert skew(found["balanced"], counts) <= min(skew(plan, counts) for plan in every) + 0.02
    assert spread(found["clustered"], counts) <= 1.1 * min(spread(plan, counts) for plan in every)
    assert cost(found["both"]) <= min(map(cost, every)) + 0.03


@pytest.mark.parametrize("seed", range(20))
def test_plans_do_what_they_are_for(seed: int) -> None:
    counts, seconds = world(seed, 60)
    found = plans(seed, 60, 6)
    by_chance = found["random"]
    assert skew(found["balanced"], counts) < 0.5 * skew(by_chance, counts)
    assert skew(found["clustered"], counts) > skew(by_chance, counts)
    assert spread(found["clustered"], counts) < 0.8 * spread(by_chance, counts)
    assert rounds(found["speed"], seconds) <= min(rounds(plan, seconds) for plan in found.values())
    assert skew(found["both"], counts) < skew(found["speed"], counts)
    assert rounds(found["both"], seconds) < rounds(found["balanced"], seconds)


def test_speed_sorts() -> None:
    _, seconds = world(1, 31)
    plan = plans(1, 31, 4)["speed"]
    assert [len(part) for part in plan] == [8, 8, 8, 7]
    for faster, slower in itertools.pairwise(plan):
        assert seconds[faster].max() <= seconds[slower].min()


def test_weights_lead_to_either_end() -> None:
    counts, seconds = world(3, 48)
    order = stream(3, "cohorts").permutation(48)

    def weighed(skewed: float, fast: float) -> CohortPlan:
        return listed(speeds.weighed(counts, seconds, 6, order, stream(3, "swaps"), skewed, fast))

    assert rounds(weighed(0, 1), seconds) == pytest.approx(rounds(plans(3, 48, 6)["speed"], seconds))
    assert skew(weighed(1, 0), counts) < skew(weighed(1, 1), counts) < skew(weighed(0.01, 1), counts)


def test_equal_clients_are_shared_out_at_random() -> None:
    """A fleet of one speed: the order of clients decides nothing."""
    order = stream(5, "cohorts").permutation(40)
    plan = listed(speeds.fast_with_fast(np.ones(40), 4, order))
    assert plan == random_plan(40, 4, 5)


def test_skew_is_zero_for_a_mirror_and_one_for_nothing_in_common() -> None:
    whole = np.array([10.0, 30.0, 0.0])
    assert skews(np.array([[1.0, 3.0, 0.0], [0.0, 0.0, 5.0]]), whole).tolist() == [0, 1]


@pytest.mark.parametrize("participants", [1, 2, 5, 7])
def test_the_expected_round_is_the_mean_over_all_draws(participants: int) -> None:
    _, seconds = world(2, 7)
    draws = [seconds[list(who)].max() for who in itertools.combinations(range(7), participants)]
    assert expected_longest(seconds, participants) == pytest.approx(np.mean(draws))


def test_a_column_keeps_values_together() -> None:
    values = ["north", "south", "south", "west", "north", "south", "west", "south"]
    assert told.by_value(values, 3, "region") == [[0, 4], [1, 2, 5, 7], [3, 6]]
    assert told.by_value(values, 2, "region") == [[0, 3, 4, 6], [1, 2, 5, 7]]
    with pytest.raises(CpflError, match=r"cohorts = 4 is more than the 3 values of cohorting.column = 'region'"):
        told.by_value(values, 4, "region")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_a_csv_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, cohort_of: list[int]) -> None:
    names = sorted(set(cohort_of))
    plan = [[k for k, cohort in enumerate(cohort_of) if cohort == name] for name in names]
    path = tmp_path_factory.mktemp("csv") / "plan.csv"
    path.write_text(told.to_csv(plan))
    assert told.from_csv(path, len(cohort_of), len(names)) == plan


def test_a_csv_may_name_cohorts(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("note, cohort, client\nx, south, 1\n, north, 0\n, south, 2\n", encoding="utf-8-sig")
    assert told.from_csv(path, 3, 2) == [[0], [1, 2]]
    path.write_text("client,cohort\n0,10\n1,9\n2,10\n")
    assert told.from_csv(path, 3, 2) == [[1], [0, 2]]  # numbers are in the order of numbers


@pytest.mark.parametrize(
    ("text", "told_of"),
    [
        ("client,cohort\n0,0\n1,1\n3,0\n", "line 4 of .* names client '3': clients are 0 to 2"),
        ("client,cohort\n0,0\nhans,1\n", "line 3 of .* names client 'hans'"),
        ("client,cohort\n0,0\n1,1\n1,0\n", "line 4 of .* names client 1 again"),
        ("client,cohort\n0,0\n", "lacks 2 of the 3 clients: 1, 2"),
        ("client,cohort\n0,0\n1,\n2,1\n", "line 3 of .* gives client 1 no cohort"),
        ("client,cohort\n0,0\n1,1\n2,2\n", "has 3 cohorts and cohorts = 2: set cohorts=3"),
        ("client,cohorts\n0,0\n", r"it lacks cohort \(is 'cohorts' meant\?\)"),
        ("", "it lacks client"),
    ],
)
def test_a_wrong_csv_is_told_in_a_sentence(tmp_path: Path, text: str, told_of: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(text)
    with pytest.raises(CpflError, match=told_of):
        told.from_csv(path, 3, 2)
