"""Who takes part in a round."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpfl.devices.fleet import Fleet
from cpfl.federation.selection.base import CohortInfo, Random, participants_per_round
from cpfl.randomness import stream
from cpfl.settings import Federation


def select(clients: list[int], federation: Federation, seed: int, number: int, round: int) -> list[int]:
    """Whom the default rule selects for a round in which every client is available."""
    known = Fleet(np.ones(1), np.ones(1))  # it needs to know nothing of them
    rule = Random(CohortInfo(number, clients, federation, known, 0, np.zeros(0, np.int64)))
    rng = stream(seed, "selection", number, round)
    return list(rule.select(clients, participants_per_round(federation, len(clients)), round, rng, 0.0))


@pytest.mark.parametrize(
    ("federation", "clients", "wanted"),
    [
        (Federation(), 7, 7),
        (Federation(participation=0.2), 50, 10),
        (Federation(participation=0.2), 2, 1),  # at least one
        (Federation(participation=0.001), 1, 1),
        (Federation(participation=0.5), 3, 2),
        (Federation(participation=0.99), 4, 4),
        (Federation(participants=5), 50, 5),
        (Federation(participants=5), 3, 3),  # no more than there are
        (Federation(participants=5, participation=0.1), 50, 5),  # the number goes before the share
    ],
)
def test_size(federation: Federation, clients: int, wanted: int) -> None:
    assert participants_per_round(federation, clients) == wanted


@given(
    clients=st.sets(st.integers(0, 10_000), min_size=1, max_size=40),
    participation=st.floats(0.001, 1),
    participants=st.integers(0, 60),
    seed=st.integers(0, 2**40),
    cohort=st.integers(0, 500),
    round=st.integers(1, 100_000),
)
def test_a_subset_of_the_cohort_in_order(
    clients: set[int], participation: float, participants: int, seed: int, cohort: int, round: int
) -> None:
    federation = Federation(participation=participation, participants=participants)
    cohort_clients = sorted(clients)
    chosen = select(cohort_clients, federation, seed, cohort, round)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= clients
    assert 1 <= len(chosen) == participants_per_round(federation, len(clients))
    assert chosen == select(cohort_clients, federation, seed, cohort, round)
    assert cohort_clients == sorted(clients)


def test_everybody_gets_a_turn_equally_often() -> None:
    counts: Counter[int] = Counter()
    for round in range(1, 2001):
        counts.update(select(list(range(10, 20)), Federation(participants=3), 90, 1, round))
    assert set(counts) == set(range(10, 20))
    assert all(abs(count - 600) < 100 for count in counts.values())  # five standard deviations


def test_rounds_cohorts_and_seeds_choose_differently() -> None:
    clients, federation = list(range(100)), Federation(participation=0.1)
    addresses = [(90, 0, 1), (90, 0, 2), (90, 1, 1), (91, 0, 1)]
    chosen = [tuple(select(clients, federation, *address)) for address in addresses]
    assert len(set(chosen)) == len(addresses)
