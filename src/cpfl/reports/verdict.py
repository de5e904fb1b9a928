"""Which candidate to take within given limits: the rule; sentences.py says it in words.

page/verdict.js is the same rule for sliders that a reader moves; a test in a browser compares the two.
Candidates are compared seed by seed: every seed has the same clients and devices for all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

GAIN = 1.1  # times sooner, from which on time is gained
TIE = 1.05  # times that are no difference: then accuracy decides
BAND = 0.5  # points that are a near miss where the size of the test set says nothing
TINY = 1e-6  # hours that are none
EXACT = 1e-9  # differences that are rounding


class Limits(NamedTuple):
    """What a user would give up and can spend; None: no limit."""

    max_drop: float = 2.0  # points of accuracy; the paper's n = 4 loses less
    max_hours: float | None = None
    max_cpu_hours: float | None = None
    max_gb: float | None = None


USUAL = Limits()


class Score(NamedTuple):
    """The outcome of one seed."""

    accuracy: float
    hours: float
    cpu_hours: float
    gb: float
    ensemble: float
    validation: float | None = None  # accuracy on the samples that clients keep back; None: not known
    global_gb: float | None = None  # of the traffic, that between servers; None: not known


@dataclass(frozen=True)
class Candidate:
    """Something to choose: an n, perhaps distilled earlier or with other settings."""

    name: str
    n: int
    scores: dict[int, Score]  # by seed
    early: bool = False  # distilled before all cohorts had stopped
    distilled: bool = True
    cut_off: int = 0  # cohorts that max_rounds stopped


@dataclass(frozen=True)
class Row:
    """A candidate against the reference: one value for every seed that both have, and their means."""

    candidate: Candidate
    drops: list[float]
    speeds: list[float]
    savings: list[float]
    paired: bool
    hours: float
    last: float  # the hours of its slowest seed
    cpu_hours: float
    gb: float
    ensemble_drop: float
    validation_drop: float | None = None  # None: some seed has no validation
    global_gb: float | None = None
    fails: list[str] = field(default_factory=list)  # of accuracy, hours, cpu_hours, gb

    @property
    def drop(self) -> float:
        """Points of accuracy that are lost, on average."""
        return mean(self.drops)

    @property
    def speed(self) -> float:
        """How many times sooner it ends: the geometric mean."""
        return typical(self.speeds)


@dataclass(frozen=True)
class Choice:
    """What the rule finds; candidates by their index."""

    rows: list[Row]
    reference: int
    chosen: int | None  # None: nothing fits
    near: int | None  # misses the limit of accuracy by less than the test set can tell
    lost: int | None  # its accuracy is lost in the distillation, not by its n
    missing: list[int]  # sooner than the chosen one, and over the limit of accuracy only
    limits: Limits
    band: float  # points that the test set cannot tell


def decide(candidates: Sequence[Candidate], limits: Limits, samples: int = 0) -> Choice:
    """The fastest candidate within the limits; of those within 5 % of it the most accurate.

    Where nothing ends sooner: the most accurate of those that end no later and gain accuracy in every seed, more than
    the test set may err; without one the reference.

    Parameters
    ----------
    candidates
        At least two.
    samples
        Size of the test set; 0: it does not say how exact the metric is.
    """
    reference = _reference(candidates)
    rows = [_row(one, candidates[reference], limits) for one in candidates]
    fitting = [i for i, row in enumerate(rows) if not row.fails]
    gaining = [i for i in fitting if rows[i].speed >= GAIN - EXACT]
    accuracy = mean([score.accuracy for score in candidates[reference].scores.values()])
    band = standard_error(accuracy, samples) or BAND
    if not gaining and reference in fitting:
        better = [i for i in fitting if _is_better(rows[i], band)]
        chosen: int | None = _most_accurate(rows, better) if better else reference
    else:
        chosen = best(rows, gaining or fitting)
    faster = GAIN * (1.0 if chosen is None else rows[chosen].speed) - EXACT
    missing = [i for i, row in enumerate(rows) if row.fails == ["accuracy"] and row.speed >= faster]
    near = best(rows, [i for i in missing if rows[i].drop - limits.max_drop <= band + EXACT])
    distilling = [i for i in missing if _lost_by_distilling(rows[i], limits)]
    lost = best(rows, distilling) if near is None else None
    return Choice(rows, reference, chosen, near, lost, missing, limits, band)


def standard_error(accuracy: float, samples: int) -> float:
    """Points by which an accuracy may differ on other test samples: one standard error of a binomial."""
    share = min(max(accuracy / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / samples) if samples else 0.0


def _reference(candidates: Sequence[Candidate]) -> int:
    """Plain federated learning, n = 1; of several the most accurate; without it the most accurate of all."""
    whole = [i for i, one in enumerate(candidates) if not one.early] or list(range(len(candidates)))
    plain = [i for i in whole if candidates[i].n == 1] or whole
    return max(plain, key=lambda i: (round(mean([score.accuracy for score in candidates[i].scores.values()]), 6), -i))


def _row(one: Candidate, base: Candidate, limits: Limits) -> Row:
    own = list(one.scores.values())
    pairs = [(base.scores[seed], score) for seed, score in one.scores.items() if seed in base.scores]
    paired = bool(pairs)
    if not paired:
        pairs = [(_average(list(base.scores.values())), _average(own))]
    row = Row(
        one,
        [b.accuracy - s.accuracy for b, s in pairs],
        [_ratio(b.hours, s.hours) for b, s in pairs],
        [_ratio(b.cpu_hours, s.cpu_hours) for b, s in pairs],
        paired,
        mean([score.hours for score in own]),
        max(score.hours for score in own),
        mean([score.cpu_hours for score in own]),
        mean([score.gb for score in own]),
        mean([b.accuracy - s.ensemble for b, s in pairs]),
        known_mean(
            [None if b.validation is None or s.validation is None else b.validation - s.validation for b, s in pairs]
        ),
        known_mean([score.global_gb for score in own]),
    )
    spent = {"accuracy": row.drop, "hours": row.last, "cpu_hours": row.cpu_hours, "gb": row.gb}
    allowed = dict(zip(spent, limits, strict=True))
    row.fails.extend(key for key, most in allowed.items() if most is not None and spent[key] > most + EXACT)
    return row


def best(rows: Sequence[Row], among: Sequence[int]) -> int | None:
    """The fastest; of those within 5 % of it the most accurate; then the one that saves most CPU hours."""
    if not among:
        return None
    fastest = max(rows[i].speed for i in among)
    return _most_accurate(rows, [i for i in among if rows[i].speed * TIE >= fastest - EXACT])


def _most_accurate(rows: Sequence[Row], among: Sequence[int]) -> int:
    return min(among, key=lambda i: (round(rows[i].drop, 6), -round(typical(rows[i].savings), 6), i))


def _is_better(row: Row, band: float) -> bool:
    """Whether it is as soon and more accurate."""
    no_later = row.speed * TIE >= 1 - EXACT
    return no_later and row.drop < -band - EXACT and all(drop < -EXACT for drop in row.drops)


def _lost_by_distilling(row: Row, limits: Limits) -> bool:
    """Whether the ensemble is within the limit and the student is not."""
    return row.candidate.distilled and row.candidate.n > 1 and row.ensemble_drop <= limits.max_drop + EXACT


def _average(scores: Sequence[Score]) -> Score:
    return Score(*(known_mean(values) for values in zip(*scores, strict=True)))  # type: ignore[arg-type]


def _difference(base: float | None, own: float | None) -> float | None:
    return None if base is None or own is None else base - own


def _ratio(base: float, own: float) -> float:
    return (base + TINY) / (own + TINY)


def mean(values: Sequence[float]) -> float:
    """The sum from left to right, as JavaScript computes it, by the number."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def known_mean(values: Sequence[float | None]) -> float | None:
    """The same; None where one value is not known."""
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def typical(ratios: Sequence[float]) -> float:
    """The geometric mean: twice as fast and half as fast cancel out."""
    return math.exp(mean([math.log(ratio) for ratio in ratios]))
