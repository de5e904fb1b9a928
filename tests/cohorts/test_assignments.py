"""Rules of cohort assignment against brute force, chance and their own promises."""

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

from cpfl.cohorts.base import ClientView, Cohorts, as_cohorts, expected_longest, skews
from cpfl.cohorts.predefined import to_csv
from cpfl.errors import CpflError
from cpfl.settings.choices import ASSIGNMENT_RULES

Floats = NDArray[np.float64]
SEARCHED = ("random", "speed", "label-balanced", "label-clustered", "multi-objective")


def world(seed: int, clients: int, classes: int = 5) -> tuple[NDArray[np.int64], Floats]:
    """Label counts of skewed clients, and the seconds of their rounds."""
    rng = np.random.default_rng(seed)
    counts = [rng.multinomial(rng.integers(1, 60), rng.dirichlet(np.full(classes, 0.3))) for _ in range(clients)]
    return np.array(counts), rng.lognormal(3, 1, clients)


def cohorts_by(rule: str, clients: ClientView, cohorts: int, **rule_args: Any) -> Cohorts:
    """The answer of a built-in rule."""
    return as_cohorts(rule, ASSIGNMENT_RULES.build(rule, rule_args).assign(clients, cohorts), clients.count, cohorts)


def view(seed: int, clients: int) -> ClientView:
    return ClientView(clients, seed, *world(seed, clients))


def assignments(seed: int, clients: int, cohorts: int) -> dict[str, Cohorts]:
    return {rule: cohorts_by(rule, view(seed, clients), cohorts) for rule in SEARCHED}


def skew(plan: Cohorts, counts: NDArray[np.int64]) -> float:
    """Written out cohort by cohort."""
    whole = counts.sum(axis=0) / counts.sum()
    each = [counts[clients].sum(axis=0) / counts[clients].sum() for clients in plan]
    return float(np.mean([np.abs(share - whole).sum() / 2 for share in each]))


def rounds(plan: Cohorts, seconds: Floats) -> float:
    return float(np.mean([seconds[clients].max() for clients in plan]))


def spread(plan: Cohorts, counts: NDArray[np.int64]) -> float:
    """Squared distances of clients' label shares to their cohort's mean: what k-means minimises."""
    share = counts / counts.sum(axis=1, keepdims=True)
    return float(sum(((share[clients] - share[clients].mean(axis=0)) ** 2).sum() for clients in plan))


def every_assignment(clients: int, cohorts: int) -> Iterator[Cohorts]:
    """Every assignment of equal sizes, some of them several times."""
    size = clients // cohorts
    for order in itertools.permutations(range(clients)):
        plan = [list(order[i * size : (i + 1) * size]) for i in range(cohorts)]
        if all(part == sorted(part) for part in plan):
            yield plan


@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
@settings(max_examples=20, deadline=None)
def test_everybody_is_somewhere_and_sizes_differ_by_one(seed: int, clients: int, data: Any) -> None:
    cohorts = data.draw(st.integers(1, clients))
    for name, plan in assignments(seed, clients, cohorts).items():
        sizes = [len(part) for part in plan]
        assert sorted(k for part in plan for k in part) == list(range(clients)), name
        assert len(plan) == cohorts, name
        assert max(sizes) - min(sizes) <= 1, name
        assert all(part == sorted(part) for part in plan), name


def test_the_same_seed_gives_the_same_cohorts() -> None:
    assert assignments(7, 60, 7) == assignments(7, 60, 7)
    other = assignments(8, 60, 7)
    assert all(plan != other[name] for name, plan in assignments(7, 60, 7).items())


@pytest.mark.parametrize("seed", range(3))
def test_tiny_cases_against_every_assignment(seed: int) -> None:
    """Eight clients in two cohorts: swaps find the lowest skew and cost, sorting the shortest rounds."""
    counts, seconds = world(seed, 8)
    found, every = assignments(seed, 8, 2), list(every_assignment(8, 2))
    assert len(every) == 70

    def cost(plan: Cohorts) -> float:
        return skew(plan, counts) + rounds(plan, seconds) / seconds.max()

    assert rounds(found["speed"], seconds) == min(rounds(plan, seconds) for plan in every)
    assert skew(found["label-balanced"], counts) <= min(skew(plan, counts) for plan in every) + 0.02
    assert spread(found["label-clustered"], counts) <= 1.1 * min(spread(plan, counts) for plan in every)
    assert cost(found["multi-objective"]) <= min(map(cost, every)) + 0.03


@pytest.mark.parametrize("seed", range(8))
def test_rules_do_what_they_are_for(seed: int) -> None:
    counts, seconds = world(seed, 60)
    found = assignments(seed, 60, 6)
    by_chance = found["random"]
    assert skew(found["label-balanced"], counts) < 0.5 * skew(by_chance, counts)
    assert skew(found["label-clustered"], counts) > skew(by_chance, counts)
    assert spread(found["label-clustered"], counts) < 0.8 * spread(by_chance, counts)
    assert rounds(found["speed"], seconds) <= min(rounds(plan, seconds) for plan in found.values())
    assert skew(found["multi-objective"], counts) < skew(found["speed"], counts)
    assert rounds(found["multi-objective"], seconds) < rounds(found["label-balanced"], seconds)


def test_speed_sorts() -> None:
    _, seconds = world(1, 31)
    plan = assignments(1, 31, 4)["speed"]
    assert [len(part) for part in plan] == [8, 8, 8, 7]
    for faster, slower in itertools.pairwise(plan):
        assert seconds[faster].max() <= seconds[slower].min()


def test_weights_lead_to_either_end() -> None:
    counts, seconds = world(3, 48)

    def weighed(skew_weight: float, speed_weight: float) -> Cohorts:
        weights = {"skew_weight": skew_weight, "speed_weight": speed_weight}
        return cohorts_by("multi-objective", view(3, 48), 6, **weights)

    assert rounds(weighed(0, 1), seconds) == pytest.approx(rounds(assignments(3, 48, 6)["speed"], seconds))
    assert skew(weighed(1, 0), counts) < skew(weighed(1, 1), counts) < skew(weighed(0.01, 1), counts)


def test_equal_clients_are_assigned_at_random() -> None:
    """A fleet of one speed: the order of clients decides nothing."""
    clients = ClientView(40, 5, seconds=np.ones(40))
    assert cohorts_by("speed", clients, 4) == cohorts_by("random", clients, 4)


def test_a_rule_says_what_the_server_learns() -> None:
    args = {"column": {"column": "region"}, "csv": {"file": "x.csv"}}
    for name in ASSIGNMENT_RULES.names:
        rule = ASSIGNMENT_RULES.build(name, args.get(name, {}))
        assert ("each label" in rule.reveals) == ("labels" in rule.needs)
        assert ("round takes" in rule.reveals) == ("seconds" in rule.needs)
        assert ("every single client's region" in rule.reveals) == ("column" in rule.needs)
        assert rule.reveals.endswith(".")


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
    clients = ClientView(8, 0, column=values)
    assert cohorts_by("column", clients, 3, column="region") == [[0, 4], [1, 2, 5, 7], [3, 6]]
    assert cohorts_by("column", clients, 2, column="region") == [[0, 3, 4, 6], [1, 2, 5, 7]]
    with pytest.raises(
        CpflError, match=r"cohorts = 4 is more than the 3 values of assignment.rule_args.column = 'region'"
    ):
        cohorts_by("column", clients, 4, column="region")


def read_csv(path: Path, clients: int, cohorts: int) -> Cohorts:
    return cohorts_by("csv", ClientView(clients, 0), cohorts, file=str(path))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_a_csv_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, cohort_of: list[int]) -> None:
    names = sorted(set(cohort_of))
    written = [[k for k, cohort in enumerate(cohort_of) if cohort == name] for name in names]
    path = tmp_path_factory.mktemp("csv") / "cohorts.csv"
    path.write_text(to_csv(written))
    assert read_csv(path, len(cohort_of), len(names)) == written


def test_a_csv_may_name_cohorts(tmp_path: Path) -> None:
    path = tmp_path / "cohorts.csv"
    path.write_text("note, cohort, client\nx, south, 1\n, north, 0\n, south, 2\n", encoding="utf-8-sig")
    assert read_csv(path, 3, 2) == [[0], [1, 2]]
    path.write_text("client,cohort\n0,10\n1,9\n2,10\n")
    assert read_csv(path, 3, 2) == [[1], [0, 2]]  # numbers are in the order of numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,cohort\n0,0\n1,1\n3,0\n", "line 4 of .* names client '3': clients are 0 to 2"),
        ("client,cohort\n0,0\nhans,1\n", "line 3 of .* names client 'hans'"),
        ("client,cohort\n0,0\n1,1\n1,0\n", "line 4 of .* names client 1 again"),
        ("client,cohort\n0,0\n", "lacks 2 of the 3 clients: 1, 2"),
        ("client,cohort\n0,0\n1,\n2,1\n", "line 3 of .* gives client 1 no cohort"),
        ("client,cohort\n0,0\n1,1\n2,2\n", "has 3 cohorts and cohorts = 2: set cohorts=3"),
        ("client,cohorts\n0,0\n", r"did you mean cohorts\? it lacks cohort"),
        ("", "it lacks client"),
    ],
)
def test_a_wrong_csv_is_refused_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cohorts.csv"
    path.write_text(text)
    with pytest.raises(CpflError, match=message):
        read_csv(path, 3, 2)
