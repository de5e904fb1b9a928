"""A choice in words: headline, detail, evidence and a verdict for every candidate. page/verdict.js says the same."""

from collections.abc import Sequence
from typing import NamedTuple

from cpfl.reports.verdict import EXACT, GAIN, TIE, Choice, Row, best, mean


class Measure(NamedTuple):
    """How candidates were measured."""

    metric: str = "accuracy"
    samples: int = 0  # in the test set; 0: they do not say how exact the metric is
    unit: str = "samples"


class Sentences(NamedTuple):
    """What a page and a terminal say of a choice."""

    headline: str
    detail: str
    evidence: str
    verdicts: list[str]  # of every candidate


def sentences(choice: Choice, measure: Measure) -> Sentences:
    """The choice in words."""
    verdicts = [_verdict(choice, i) for i in range(len(choice.rows))]
    detail = " ".join(_detail(choice, measure, verdicts))
    return Sentences(_headline(choice, measure), detail, _evidence(choice, measure), verdicts)


def _headline(choice: Choice, measure: Measure) -> str:
    rows, limits = choice.rows, choice.limits
    base = rows[choice.reference].candidate.name
    only_n = all(row.candidate.name == f"n = {row.candidate.n}" for row in rows)
    subject = "No n" if only_n else "None of these"
    if choice.chosen is None:
        return f"{subject} fits these limits; {rows[_closest(choice)].candidate.name} comes closest"
    if choice.chosen != choice.reference:
        row = rows[choice.chosen]
        return f"{row.candidate.name} {pace(row.speed)} than {base} and {loss(row.drop, f' of {measure.metric}')}"
    if choice.lost is not None:
        row = rows[choice.lost]
        amount = points(row.drop - row.ensemble_drop)
        return f"Keep {base} until distillation works: it loses {amount} at {row.candidate.name}"
    within = "these limits" if any(limits[1:]) else points(limits.max_drop, exact=True)
    other = "" if choice.near is None else f", or try {rows[choice.near].candidate.name}"
    return f"{subject} gains time within {within}: keep {base}{other}"


def _detail(choice: Choice, measure: Measure, verdicts: Sequence[str]) -> list[str]:
    rows, texts, base = choice.rows, [], choice.rows[choice.reference]
    if choice.chosen is None and choice.near is None:
        closest = _closest(choice)
        return [f"{rows[closest].candidate.name} {verdicts[closest]}."]
    if choice.chosen is not None and choice.chosen != choice.reference:
        row = rows[choice.chosen]
        texts.append(
            f"It ends after {number(row.hours)} h instead of {number(base.hours)}, takes {number(row.cpu_hours)} CPU "
            f"hours instead of {number(base.cpu_hours)} and sends {number(row.gb)} GB instead of {number(base.gb)}."
        )
    if choice.near is not None:
        row = rows[choice.near]
        told = f", less than {measure.samples:,} test {measure.unit} can tell (±{fixed(choice.band, 1)})"
        over = over_by(row.drop - choice.limits.max_drop)
        text = f"{row.candidate.name} {would(row.speed)} and misses your limit by {over} points"
        texts.append(f"{text}{told if measure.samples else ''}.")
    elif choice.lost is not None:
        row = rows[choice.lost]
        scores = list(row.candidate.scores.values())
        ensemble, student = mean([one.ensemble for one in scores]), mean([one.accuracy for one in scores])
        texts.append(
            f"{row.candidate.name} {would(row.speed)}: its ensemble has {fixed(ensemble, 1)} %, its student "
            f"{fixed(student, 1)} %, so the distillation loses it, not n."
        )
    elif choice.missing:
        least = min(choice.missing, key=lambda i: (rows[i].drop, i))
        texts.append(f"{rows[least].candidate.name} {would(rows[least].speed)}, but {verdicts[least]}.")
    others = [i for i, row in enumerate(rows) if i != choice.reference and not row.fails]
    if choice.chosen == choice.reference and (second := best(rows, others)) is not None:
        row = rows[second]
        texts.append(f"Within the limits {row.candidate.name} {pace(row.speed)}, seed by seed {_speeds(row)}.")
    return texts


def _closest(choice: Choice) -> int:
    rows = choice.rows
    fewest = min(range(len(rows)), key=lambda i: (len(rows[i].fails), rows[i].drop, i))
    return fewest if choice.near is None else choice.near


def _evidence(choice: Choice, measure: Measure) -> str:
    base = choice.rows[choice.reference]
    row = base if choice.chosen is None else choice.rows[choice.chosen]
    seeds = count(len(row.candidate.scores), "seed")
    if not row.paired:
        seeds = f"no seed in common with {base.candidate.name}"
    elif row is not base:
        sooner = row.speed >= GAIN - EXACT or row.drop > EXACT
        those = sum(speed >= TIE - EXACT for speed in row.speeds) if sooner else sum(d < -EXACT for d in row.drops)
        told = f"{'faster' if sooner else 'more accurate'} in {those} of {len(row.speeds)} seeds"
        seeds = told if len(row.speeds) > 1 else "one seed only"
    size = f"metric {measure.metric}"
    if measure.samples:
        size = f"{measure.samples:,} test {measure.unit}, one is {number(100 / measure.samples)} points"
    cut_off = sum(one.candidate.cut_off for one in ([base] if row is base else [base, row]))
    texts = [seeds, size, f"{count(cut_off, 'cohort')} cut off" if cut_off else "none cut off"]
    if row is not base and row.validation_drop is not None:
        texts.append(f"on validation samples it {loss(row.validation_drop)}")
    return " · ".join(texts)


def _verdict(choice: Choice, i: int) -> str:
    row, limits = choice.rows[i], choice.limits
    if i == choice.chosen:
        return "best within your limits"
    if row.fails:
        texts = {
            "accuracy": f"{loss(row.drop)}, {over_by(row.drop - limits.max_drop)} over your limit",
            "hours": f"ends after {number(row.last)} h, past your deadline",
            "cpu_hours": f"takes {number(row.cpu_hours)} CPU hours, over your budget",
            "gb": f"sends {number(row.gb)} GB, over your limit",
        }
        return "; ".join(texts[key] for key in row.fails)
    if i == choice.reference:
        return "the reference"
    return "fits, but gains less" if row.speed >= GAIN - EXACT else f"fits, gains no time ({fixed(row.speed, 2)}×)"


def _speeds(row: Row) -> str:
    return ", ".join(f"{fixed(speed, 2)}×" for speed in row.speeds[:5]) + (" …" if len(row.speeds) > 5 else "")


def fixed(value: float, digits: int) -> str:
    """A number without its sign, half rounded up in both languages."""
    scale: float = 10.0**digits
    return f"{int(abs(value) * scale + 0.5 + EXACT) / scale:,.{digits}f}"


def number(value: float) -> str:
    """0.46, 4.46, 32.8, 5,577."""
    return fixed(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def count(value: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{value} {noun}{'s' * (value != 1)}"


def points(value: float, exact: bool = False) -> str:
    """Points of accuracy with one digit; a limit as it was given."""
    text = fixed(value, 2).rstrip("0").rstrip(".") if exact else fixed(value, 1)
    return f"{text} point{'s' * (text != '1')}"


def over_by(excess: float) -> str:
    """How far a limit is exceeded, never as 0.0."""
    return fixed(excess, 1) if excess >= 0.05 else fixed(max(excess, 0.01), 2)


def pace(speed: float) -> str:
    """How much sooner or later something ends."""
    if speed >= TIE - EXACT:
        return f"ends {fixed(speed, 1 if speed >= GAIN - EXACT else 2)}× sooner"
    return f"ends {fixed(1 / speed, 2)}× later" if speed * TIE <= 1 + EXACT else "ends no sooner"


def would(speed: float) -> str:
    """The same of what is not chosen."""
    return pace(speed).replace("ends", "would end", 1)


def loss(drop: float, of: str = "") -> str:
    """What is lost or gained of the metric."""
    if abs(drop) < 0.05:
        return f"loses nothing{of}"
    return f"{'loses' if drop > 0 else 'gains'} {points(drop)}{of}"
