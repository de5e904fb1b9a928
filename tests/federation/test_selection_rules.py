"""Oort, REFL and power-of-choice against their papers' formulas, written again in numpy; and own rules."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.federation.cohorts import close, cohort, session

from cpfl.devices.availability import AvailabilitySchedule
from cpfl.errors import CpflError, SettingError
from cpfl.federation.messages import ClientResult
from cpfl.federation.selection.base import CohortInfo, Selection
from cpfl.federation.selection.guided import LeastAvailable, Oort, PowerOfChoice
from cpfl.federation.stopping import Share
from cpfl.randomness import stream
from cpfl.settings.choices import SELECTIONS

SAMPLES = [3, 5, 8, 2, 9, 4, 7, 6, 10, 1]
SPEEDS = [1000.0, 2000.0, 500.0, 900.0, 3000.0, 700.0, 1500.0, 400.0, 1200.0, 800.0]


def rng(number: int) -> np.random.Generator:
    return np.random.default_rng(number)


def reports(clients: list[int], round: int) -> list[ClientResult]:
    """Losses that fall from round to round, differently for each client."""
    reported = []
    for c in clients:
        losses = np.abs(np.sin(np.arange(1, SAMPLES[c] + 1) * (c + 1))) * 3 / round
        reported.append(
            ClientResult(c, SAMPLES[c], SAMPLES[c], losses.mean(), 1.0, squared_losses=float((losses**2).sum()))
        )
    return reported


class Paper:
    """Oort's algorithm 1, line by line, on arrays."""

    def __init__(self, seconds: np.ndarray, delta: float, window: int, scaled: bool) -> None:
        self.scaled = scaled
        self.D, self.T, self.delta, self.W = seconds, delta, delta, window
        self.U, self.L = np.full(len(seconds), np.nan), np.zeros(len(seconds))
        self.epsilon, self.history = Fraction(9, 10), [math.nan]

    def util(self, R: int) -> np.ndarray:
        clipped = np.minimum(self.U, np.nanquantile(self.U, 0.95))
        if self.scaled:  # as the authors' code does
            least = np.nanmin(self.U) * 0.999
            clipped = (clipped - least) / max(np.nanmax(self.U) - least, 1e-4)
        with np.errstate(divide="ignore"):
            util = clipped + np.sqrt(0.1 * np.log(R) / self.L)
        return np.where(self.T < self.D, util * (self.T / self.D) ** 2, util)

    def feedback(self, reported: list[ClientResult], R: int) -> None:
        for r in reported:
            B = SAMPLES[r.client]
            self.U[r.client] = B * math.sqrt(1 / B * r.squared_losses)  # type: ignore[operator]
            self.L[r.client] = R
        self.history.append(sum(self.U[r.client] for r in reported))
        if R % self.W == 0 and R >= 2 * self.W:
            W = self.W
            if sum(self.history[R - 2 * W + 1 : R - W + 1]) > sum(self.history[R - W + 1 : R + 1]):
                self.T += self.delta
        self.epsilon = max(Fraction(2, 10), Fraction(98, 100) * self.epsilon)

    def select(self, C: list[int], K: int, R: int, draw: np.random.Generator) -> list[int]:
        """SampleByUtil of (1 − ε) × K from W, then SampleBySpeed of ε × K from C − E; what one lacks the other has.

        A client is whole: their code takes the whole part of (1 − ε) × K, so that some of ε × K is always left.
        """
        E = [c for c in C if not np.isnan(self.U[c])]
        rest = [c for c in C if np.isnan(self.U[c])]
        known = int((1 - self.epsilon) * K)
        new = K - known
        while known > len(E):
            known, new = known - 1, new + 1
        while new > len(rest):
            known, new = known + 1, new - 1
        P: list[int] = []
        if known:
            util = self.util(R)[E]
            W = util >= 0.95 * sorted(util, reverse=True)[known - 1]
            P += draw.choice(np.array(E)[W], known, replace=False, p=util[W] / util[W].sum()).tolist()
        if new:
            speed = 1 / self.D[rest]
            P += draw.choice(rest, new, replace=False, p=speed / speed.sum()).tolist()
        return P


@pytest.mark.parametrize("K", [1, 4, 5])
@pytest.mark.parametrize("scaled", [False, True])
def test_oort_is_algorithm_1(scaled: bool, K: int) -> None:
    about = cohort(SAMPLES, SPEEDS)
    seconds = np.array([3 * s * v / 1000 + 2 for s, v in zip(SAMPLES, SPEEDS, strict=True)])
    assert np.allclose([about.seconds[c] for c in range(10)], seconds)
    one = Oort(about, pacer_seconds=12.0, pacer_rounds=3, most_rounds=0, scaled=scaled)
    paper = Paper(seconds, 12.0, 3, scaled)
    mixed = 0
    for R in range(1, 101):
        there = list(range(5 if R < 12 else 7 if R < 85 else 10))  # some are away at first
        explored = [c for c in there if not np.isnan(paper.U[c])]
        if explored:
            assert one.utilities(explored, R) == pytest.approx(paper.util(R)[explored], rel=1e-12)
        chosen = list(one.select(there, K, R, rng(R), 0.0))
        assert len(set(chosen)) == K
        assert chosen == paper.select(there, K, R, rng(R))
        mixed += 0 < len(set(chosen) - set(explored)) < K
        reported = reports(sorted(chosen), R)
        one.update(R, reported, 1.0, float(R))
        paper.feedback(reported, R)
        assert one.preferred == pytest.approx(paper.T)
    assert paper.T > 12.0  # utilities fall from round to round, so the pacer relaxed
    assert mixed > 2 or K == 1  # rounds of old and new clients
    assert not np.isnan(paper.U).any()  # who came late was tried
    assert one.state()["explore"] == pytest.approx(0.2)


@pytest.mark.parametrize("came", [1, 100], ids=["ε = 0.9", "ε = 0.2"])
def test_oort_sees_everybody_however_few_take_part(came: int) -> None:
    """One a round: ten clients are seen in ten rounds, and those who come late in as many rounds as they are."""
    one, seen = Oort(cohort(SAMPLES, SPEEDS)), list[int]()
    for R in range(1, came + 10):
        (client,) = one.select(list(range(10 if came <= R else 3)), 1, R, rng(R), 0.0)
        one.update(R, reports([client], R), 1.0, float(R))
        seen.append(client)
    assert set(seen) == set(range(10))
    if came > 1:
        assert set(seen[came - 1 : came + 6]) == set(range(3, 10))


@pytest.mark.parametrize(
    ("explore", "wanted", "new"), [(0.2, 4, 1), (0.2, 1, 1), (0.5, 5, 3), (0.9, 10, 9), (0.0, 4, 0)]
)
def test_the_whole_part_is_the_known_clients(explore: float, wanted: int, new: int) -> None:
    """(1 − ε) × K rounded down are known ones: 3.2, 0.8, 2.5, 1 and 4."""
    one = Oort(cohort(SAMPLES * 3, SPEEDS * 3), explore=explore, explore_least=explore)
    one.update(1, reports(list(range(10)), 1), 1.0, 1.0)
    chosen = one.select(list(range(30)), wanted, 2, rng(2), 1.0)
    assert sum(client >= 10 for client in chosen) == new


def test_oort_does_not_ask_the_same_for_ever() -> None:
    one = Oort(cohort(SAMPLES, SPEEDS), most_rounds=2)
    times = dict.fromkeys(range(10), 0)
    for R in range(1, 6):
        chosen = one.select(list(range(10)), 4, R, rng(R), 0.0)
        one.update(R, reports(list(chosen), R), 1.0, float(R))
        for c in chosen:
            times[c] += 1
    assert set(times.values()) == {2}  # 5 rounds of 4: everybody twice
    assert len(set(one.select(list(range(10)), 4, 6, rng(6), 0.0))) == 4  # rather again than nobody


def test_outliers_are_clipped() -> None:
    one = Oort(cohort(SAMPLES, SPEEDS), penalty=0.0, scaled=False)
    reported = reports(list(range(10)), 1)
    reported[7] = ClientResult(7, 6, 6, 1.0, 1.0, squared_losses=1e12)
    one.update(1, reported, 1.0, 1.0)
    values = [SAMPLES[r.client] * math.sqrt(r.squared_losses / SAMPLES[r.client]) for r in reported]  # type: ignore[operator]
    assert one.utilities([7], 1)[0] == pytest.approx(np.quantile(values, 0.95))


def test_oort_s_default_preferred_duration_is_what_three_in_ten_need() -> None:
    about = cohort(SAMPLES, SPEEDS)
    assert Oort(about).preferred == pytest.approx(np.quantile(list(about.seconds.values()), 0.3))


def test_power_of_choice() -> None:
    one = PowerOfChoice(cohort(SAMPLES, SPEEDS), candidates=5)
    latest = np.full(10, np.inf)
    everybody = list(range(10))
    for R in range(1, 20):
        chosen = list(one.select(everybody, 2, R, rng(R), 0.0))
        p = np.array(SAMPLES) / sum(SAMPLES)
        A = rng(R).choice(10, 5, replace=False, p=p)
        assert chosen == A[np.argsort(-latest[A], kind="stable")][:2].tolist()
        reported = [ClientResult(c, 1, 1, math.cos(c * R) + 2, None) for c in chosen]
        one.update(R, reported, 1.0, float(R))
        for r in reported:
            latest[r.client] = r.loss
    assert np.isfinite(latest).sum() >= 8  # those who have not been asked come first


def test_refl_takes_those_who_will_leave() -> None:
    """At second 0 all are there; in the slot from 10 to 20 they are there for 10, 9, 8 … seconds."""
    weeks = [AvailabilitySchedule((0.0,), (20.0 - k,), 1000.0) for k in range(10)]
    one = LeastAvailable(cohort(SAMPLES, SPEEDS, weeks), accuracy=1.0)
    first = one.select(list(range(10)), 3, 1, rng(1), 0.0)
    assert len(set(first)) == 3
    one.update(1, [], 10.0, 10.0)  # μ is 10 s
    assert list(one.select(list(range(10)), 3, 2, rng(2), 0.0)) == [9, 8, 7]
    assert list(one.select(list(range(6)), 3, 2, rng(2), 0.0)) == [5, 4, 3]
    one.update(2, [], 50.0, 60.0)
    assert one.state()["mean"] == pytest.approx(0.75 * 50 + 0.25 * 10)


def test_refl_lets_clients_rest() -> None:
    """Nobody is asked again within five rounds' time, unless there are too few others: then who rested longest."""
    weeks = [AvailabilitySchedule((0.0,), (1000.0,), 1000.0)] * 10
    one, again = (LeastAvailable(cohort(SAMPLES, SPEEDS, weeks), accuracy=1.0, rest=5) for _ in range(2))
    one.update(1, reports([9, 8], 1), 10.0, 10.0)  # from second 0 to 10
    one.update(2, reports([7, 6, 5], 2), 10.0, 20.0)
    again.restore(one.state())
    for rule in (one, again):
        for seed in range(20):
            assert set(rule.select(list(range(10)), 4, 3, rng(seed), 20.0)) <= {0, 1, 2, 3, 4}
            assert set(rule.select(list(range(10)), 4, 3, rng(seed), 60.0)) <= {0, 1, 2, 3, 4, 8, 9}
            assert sorted(rule.select([9, 8, 7, 6, 0], 3, 3, rng(seed), 20.0)) == [0, 8, 9]
        late = {c for seed in range(20) for c in rule.select(list(range(10)), 4, 3, rng(seed), 70.0)}
        assert late == set(range(10))  # five rounds of ten seconds are over


def test_refl_s_rest_goes_by_the_clock_of_the_cohort() -> None:
    """An evaluation makes the cohort wait an hour; who takes part after it rests as long as anybody before."""
    weeks = [AvailabilitySchedule((0.0,), (1000.0,), 1000.0)] * 10
    changes = {
        "federation__participants": 2, "federation__selection": "refl", "devices__availability": "synthetic",
        "federation__selection_args": {"rest": 2, "accuracy": 1.0}, "stopping__rule": "joint",
        "stopping__eval_interval": 2,
    }  # fmt: skip
    one = session(SAMPLES, SPEEDS, weeks, **changes)
    for phase in range(1, 11):
        selected = []
        for _ in range(2):
            closed = close(one, SAMPLES)
            selected.append(set(closed.record.participants))
        assert not selected[0] & selected[1], phase
        one.continue_training(closed, one.clock + 3600, Share(0.0, 0))


def test_refl_s_ties_and_mistakes_are_drawn() -> None:
    weeks = [AvailabilitySchedule((0.0,), (1000.0,), 1000.0)] * 10
    one = LeastAvailable(cohort(SAMPLES, SPEEDS, weeks), accuracy=0.9)
    one.update(1, [], 10.0, 10.0)
    chosen = [c for R in range(2, 2002) for c in one.select(list(range(10)), 3, R, rng(R), 0.0)]
    counts = np.bincount(chosen, minlength=10)
    assert abs(counts - 600).max() < 110  # all the same: at random
    sure = LeastAvailable(
        cohort(SAMPLES, SPEEDS, [AvailabilitySchedule((0.0,), (15.0 + k,), 1000.0) for k in range(10)]), accuracy=0.9
    )
    sure.update(1, [], 10.0, 10.0)
    right = [0 in sure.select(list(range(10)), 1, R, rng(R), 0.0) for R in range(2000)]
    assert 0.2 < np.mean(right) < 0.6  # the ninth, there for 9 of 10 s, says 0.1 in one of ten rounds, and so on


@pytest.mark.parametrize("name", ["oort", "power-of-choice", "random", "all"])
def test_in_a_session(name: str) -> None:
    changes: dict[str, Any] = {} if name == "all" else {"federation__participants": 3}
    one = session(SAMPLES, SPEEDS, federation__selection=name, **changes)
    for _ in range(12):
        record = close(one, SAMPLES).record
        assert len(record.participants) == (10 if name == "all" else 3)
        assert record.participants == sorted(record.participants)


def test_random_is_what_it_was() -> None:
    one = session(SAMPLES, SPEEDS, federation__participants=3)
    for round in range(1, 20):
        wanted = sorted(stream(90, "selection", 0, round).choice(10, 3, replace=False).tolist())
        assert close(one, SAMPLES).record.participants == wanted


class Fastest(Selection):
    """An own rule."""

    def select(self, available: Any, count: int, round: int, rng: np.random.Generator, clock: float) -> list[int]:
        return sorted(available, key=lambda client: self.cohort.seconds[client])[:count]


class Greedy(Fastest):
    def select(self, available: Any, count: int, round: int, rng: np.random.Generator, clock: float) -> list[int]:
        return [available[0], available[0]]


class Picky(Fastest):
    def __init__(self, cohort: CohortInfo, taste: float) -> None:
        super().__init__(cohort)


class Untold(Fastest):
    """Says nothing of its argument."""

    def __init__(self, cohort, taste="bitter"):  # type: ignore[no-untyped-def]
        super().__init__(cohort)
        self.taste = 2 / taste


class Anything(Fastest):
    def __init__(self, cohort: CohortInfo, **rest: Any) -> None:
        super().__init__(cohort)
        self.rest = rest


def test_arguments_as_they_are_written() -> None:
    def made(name: str, **args: Any) -> Any:
        return SELECTIONS.build(name, args, cohort(SAMPLES, SPEEDS))

    assert made("oort", penalty=2, pacer_seconds=3)  # whole numbers are numbers
    assert made(f"{__name__}:Anything", one=1, two="b").rest == {"one": 1, "two": "b"}


def test_an_own_rule() -> None:
    name = f"{__name__}:Fastest"
    one = session(SAMPLES, SPEEDS, federation__participants=2, federation__selection=name)
    seconds = [3 * s * v / 1000 for s, v in zip(SAMPLES, SPEEDS, strict=True)]
    assert close(one, SAMPLES).record.participants == sorted(np.argsort(seconds)[:2].tolist())


def test_what_a_rule_may_not_do() -> None:
    one = session(SAMPLES, SPEEDS, federation__participants=2, federation__selection=f"{__name__}:Greedy")
    with pytest.raises(CpflError, match="different ones"):
        one.open_round()


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("ort", {}, "did you mean oort.*random, all, oort, refl, power-of-choice, or module:Class"),
        ("nowhere:Part", {}, "cannot be loaded"),
        ("math:nothing", {}, "cannot be loaded"),
        ("os:getcwd", {}, "no subclass"),
        ("collections:Counter", {}, "no subclass"),
        (
            "oort",
            {"penlty": 1},
            r"'oort' does not take federation\.selection_args\.penlty; did you mean penalty\? known: "
            "penalty, explore, explore_decay, explore_least, pacer_seconds, pacer_rounds, cutoff, clip, most_rounds",
        ),
        ("oort", {"clip": 2}, r"federation\.selection_args\.clip = 2 is not allowed: 0 to 1"),
        (
            "oort",
            {"explore": "much"},
            r"federation\.selection_args\.explore = 'much' is not allowed: a number is needed",
        ),
        ("oort", {"explore": True}, r"federation\.selection_args\.explore = True is not allowed: a number"),
        ("oort", {"pacer_rounds": 2.5}, r"federation\.selection_args\.pacer_rounds = 2\.5 .* a whole number is needed"),
        ("oort", {"scaled": 1}, r"federation\.selection_args\.scaled = 1 .* true or false is needed"),
        ("oort", {"cohort": 1}, r"'oort' does not take federation\.selection_args\.cohort; known: penalty"),
        ("random", {"x": 1}, r"'random' does not take federation\.selection_args\.x; it takes no arguments"),
        (f"{__name__}:Picky", {}, r"Picky' needs federation\.selection_args\.taste; known: taste"),
        (f"{__name__}:Picky", {"taste": "sour"}, r"federation\.selection_args\.taste = 'sour' .* a number"),
        (
            f"{__name__}:Untold",
            {"taste": "sour"},
            r"Untold' does not take federation\.selection_args = \{'taste': 'sour'\}",
        ),
        (f"{__name__}:Untold", {}, r"Untold' cannot be made: "),
    ],
)
def test_rules_that_are_refused(name: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        SELECTIONS.build(name, args, cohort(SAMPLES, SPEEDS))
