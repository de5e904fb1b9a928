"""The rule in the page's script and the rule in Python: the same choice and the same words, on many random tables."""

from __future__ import annotations

import random
from importlib import resources
from typing import Any

from tests.visits import IN_A_BROWSER, browser

from cpfl.reports.advice import for_script
from cpfl.reports.sentences import Measure, sentences
from cpfl.reports.verdict import Candidate, Limits, Score, decide

pytestmark = IN_A_BROWSER
__all__ = ["browser"]  # a fixture
TABLES = 1500
SCRIPT = """cases => cases.map(([candidates, limits, measure]) => {
    const choice = verdict.decide(candidates, limits, measure.samples);
    const words = verdict.sentences(choice, measure);
    return [choice.reference, choice.chosen, choice.near, choice.lost, words.headline, words.detail, words.evidence,
        words.verdicts];
})"""


def test_script_and_python_agree(browser: Any) -> None:
    chance = random.Random(1)
    cases = [_case(chance) for _ in range(TABLES)]
    expected = []
    for candidates, limits, measure in cases:
        choice = decide(candidates, limits, measure.samples)
        found = (choice.reference, choice.chosen, choice.near, choice.lost)
        expected.append([*found, *sentences(choice, measure)])
    page = browser.new_page()
    page.add_script_tag(content=resources.files("cpfl.reports").joinpath("page/verdict.js").read_text())
    given = [[for_script(c), list(limits), measure._asdict()] for c, limits, measure in cases]
    for case, ours, theirs in zip(cases, expected, page.evaluate(SCRIPT, given), strict=True):
        assert theirs == ours, case
    page.close()
    kinds = [(chosen is None, chosen == ref, near is None, lost is None) for ref, chosen, near, lost, *_ in expected]
    assert len(set(kinds)) >= 7  # the tables led to every kind of answer


def _case(chance: random.Random) -> tuple[list[Candidate], Limits, Measure]:
    """Candidates with ties, with seeds that are missing, some distilled earlier or badly."""
    exact = chance.random() < 0.5  # few digits: many ties and many halves to round
    seeds = chance.sample(range(90, 96), chance.randint(1, 4)) + [2**62 + 1] * (chance.random() < 0.1)
    found = []
    for i in range(chance.randint(2, 7)):
        n = chance.choice([1, 2, 4, 16]) if i else chance.choice([1, 1, 1, 2])
        early = i > 0 and chance.random() < 0.2
        own = sorted(chance.sample(seeds, chance.randint(1, len(seeds)))) if chance.random() < 0.2 else sorted(seeds)
        if chance.random() < 0.05:
            own = [7]
        every = _score(chance, exact, n) if exact and chance.random() < 0.7 else None
        scores = {seed: every or _score(chance, exact, n) for seed in own}
        name = f"n = {n}" + (", quorum 50 %" if early else ", α = <1>" if chance.random() < 0.1 else "")
        found.append(Candidate(name, n, scores, early, chance.random() < 0.9, chance.choice([0, 0, 0, 1, 5])))
    some = lambda values: chance.choice([None, None, *values])  # noqa: E731
    limits = Limits(chance.choice([0.0, 0.25, 1.0, 2.0, 2.5, 20.0]), some([3, 5.5, 90]), some([30, 2500]), some([0.4]))
    samples = chance.choice([0, 0, 60, 359, 10_000])
    return found, limits, Measure(chance.choice(["accuracy", "R²"]), samples, chance.choice(["images", "samples"]))


def _score(chance: random.Random, exact: bool, n: int) -> Score:
    digits = 2 if exact else 9
    accuracy = chance.choice([70, 69.5, 67.45, 66]) + (0 if exact else chance.gauss(0, 2))
    hours = chance.choice([0, 2, 2.1, 2.11, 2.2, 2.24, 4]) if exact else 4000 * chance.random() ** 4
    ensemble = accuracy + chance.choice([0, 0.55, 3.5])
    values = (accuracy, hours, hours * chance.choice([7, 1000]) / n, hours / 10, min(ensemble, 100.0))
    known = [round(float(value), digits) for value in values]
    validation = None if chance.random() < 0.1 else round(known[0] + chance.choice([0, 0.5, 3]), digits)
    return Score(*known, validation, chance.choice([None, known[3] / 100]))
