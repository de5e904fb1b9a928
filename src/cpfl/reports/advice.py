"""What to take: for a page, as a few lines for a terminal, and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpfl.errors import SettingError
from cpfl.reports.candidates import Comparison, command, command_on, comparisons
from cpfl.reports.groups import Group, group
from cpfl.reports.reading import RunFacts, read_all
from cpfl.reports.sentences import Sentences, count, loss, points, sentences
from cpfl.reports.verdict import EXACT, USUAL, Candidate, Choice, Limits, decide

MANY = 8  # candidates, of which the best one looks better than it is
FEW = 3  # seeds


@dataclass(frozen=True)
class Advice:
    """What to take of the candidates of one comparison."""

    comparison: Comparison
    choice: Choice | None  # None: there is nothing to choose between
    words: Sentences
    doubts: list[str] = field(default_factory=list)
    next: str = ""  # the next command; empty: none

    @property
    def name(self) -> str | None:
        """The candidate to take."""
        found = self.choice.chosen if self.choice else None
        return None if found is None else self.comparison.candidates[found].name

    @property
    def n(self) -> int | None:
        """Its number of cohorts."""
        found = self.choice.chosen if self.choice else None
        return None if found is None else self.comparison.candidates[found].n

    @property
    def group(self) -> Group | None:
        """The experiment of which one n, as it was run, is to be taken."""
        found = self.choice.chosen if self.choice else None
        if found is None or not self.comparison.runs or self.comparison.candidates[found].early:
            return None
        run = self.comparison.runs[found][0]
        return next(one for one in self.comparison.groups if any(own is run for own in one.runs))

    def text(self) -> str:
        """Headline, evidence and the next command, for a terminal."""
        lines = [self.words.headline, self.words.evidence, f"next: {self.next}" if self.next else ""]
        return "\n".join(line for line in lines if line)

    def tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        rows = self.choice.rows if self.choice else []
        candidates = [
            {
                "name": row.candidate.name,
                "n": row.candidate.n,
                "seeds": list(row.candidate.scores),
                "drop": row.drop,
                "times_sooner": row.speed,
                "hours": row.hours,
                "cpu_hours": row.cpu_hours,
                "gb": row.gb,
                "global_gb": row.global_gb,
                "validation_drop": row.validation_drop,
                "verdict": verdict,
            }
            for row, verdict in zip(rows, self.words.verdicts, strict=True)
        ]
        return {
            "label": self.comparison.label,
            "take": self.name,
            "n": self.n,
            "headline": self.words.headline,
            "detail": self.words.detail,
            "evidence": self.words.evidence,
            "doubts": self.doubts,
            "next": self.next,
            "text": self.text(),
            "candidates": candidates,
        }

    def explorer(self) -> dict[str, Any]:
        """What the page's explorer needs: all scores, so that a reader can move the limits."""
        own, limits = self.comparison, self.choice.limits if self.choice else USUAL
        facts = zip(for_script(own.candidates), own.commands, own.settings, strict=True)
        candidates = [one | {"command": line, "settings": settings} for one, line, settings in facts]
        return {"label": own.label, **own.measure._asdict(), "limits": list(limits), "candidates": candidates}


def advise_runs(paths: Iterable[Path], limits: Limits = USUAL) -> list[Advice]:
    """What to take of the runs in these run folders: one advice for every task; damaged folders are left out."""
    return [advise(one, limits) for one in comparisons(group(read_all(paths)[0]))]


def advise(comparison: Comparison, limits: Limits = USUAL) -> Advice:
    """What to take of the candidates within the limits."""
    found, measure = comparison.candidates, comparison.measure
    if len(found) < 2:
        headline = (
            f"Only {found[0].name} has been run: there is nothing to compare" if found else "No run is finished yet"
        )
        evidence = count(len(found[0].scores), "seed") if found else ""
        return Advice(comparison, None, Sentences(headline, "", evidence, []), [], _others(comparison))
    choice = decide(found, limits, measure.samples)
    words = sentences(choice, measure)
    return Advice(comparison, choice, words, _doubts(comparison, choice), _next(comparison, choice))


def for_script(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    """Candidates as page/verdict.js takes them: seeds as texts, which may exceed a number of JavaScript."""
    return [
        {
            **{key: getattr(one, key) for key in ("name", "n", "early", "distilled", "cut_off")},
            "seeds": [str(seed) for seed in one.scores],
            "scores": [list(score) for score in one.scores.values()],
        }
        for one in candidates
    ]


def check_limits(limits: Limits) -> None:
    """Refuse what is no limit."""
    if not 0 <= limits.max_drop <= 100:  # also false for nan
        raise SettingError(f"max_drop = {limits.max_drop:g} is not allowed: points of accuracy, 0 to 100")
    for key, value in zip(limits._fields[1:], limits[1:], strict=True):
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(f"{key} = {value:g} is not allowed: a number above 0")


def _doubts(comparison: Comparison, choice: Choice) -> list[str]:
    found, reference = comparison.candidates, comparison.candidates[choice.reference]
    whole, doubts = [one for one in found if not one.early], []
    if reference.n != 1:
        doubts.append(
            f"There is no finished run with n = 1: all are compared with {reference.name}, the best in "
            f"{comparison.measure.metric}."
        )
    if single := [one.name for one in whole if len(one.scores) == 1]:
        doubts.append(f"One seed only for {_listed(single)}: hours depend on one slow device, so run more seeds.")
    if apart := [row.candidate.name for row in choice.rows if not row.paired]:
        doubts.append(f"No seed in common with {reference.name}: {_listed(apart)}; only means are compared.")
    if cut_off := [one.name for one in whole if one.cut_off]:
        doubts.append(f"max_rounds stopped cohorts before they had converged: {_listed(cut_off)}.")
    doubts += _disagreement(comparison, choice)
    if len(found) > MANY:
        doubts.append(
            f"{len(found)} candidates were compared on one test set: the best of them looks better than it is."
        )
    return doubts


def _disagreement(comparison: Comparison, choice: Choice) -> list[str]:
    """Where validation samples put a candidate on the other side of the limit: of those that the choice hangs on."""
    most, texts = choice.limits.max_drop + EXACT, []
    for i in sorted({choice.chosen, choice.near, *choice.missing} - {None, choice.reference}):  # type: ignore[type-var]
        row = choice.rows[i]  # type: ignore[index]
        if row.validation_drop is not None and (row.drop > most) != (row.validation_drop > most):
            on_both = f"{loss(row.drop)} on the test set and {loss(row.validation_drop)} on validation samples"
            texts.append(f"{row.candidate.name} {on_both}")
    limit = points(choice.limits.max_drop, exact=True)
    return [f"Test and validation disagree about your limit of {limit}: {'; '.join(texts)}."] if texts else []


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _next(comparison: Comparison, choice: Choice) -> str:
    """What would make the answer surer, or use it."""
    found, runs = comparison.candidates, comparison.runs
    if not runs:
        return "" if choice.chosen is None else comparison.commands[choice.chosen]
    if found[choice.reference].n != 1:
        seeds = sorted(found[choice.reference].scores)
        return _sweep(runs[choice.reference][0], [1], seeds)
    if choice.lost is not None:
        run = runs[choice.lost][0]
        epochs = 2 * run.experiment.distillation.epochs
        return command_on("distill", run, "--set", f"distillation.epochs={epochs}")
    shown = choice.chosen if choice.near is None else choice.near
    if shown is None:
        return ""
    row, most = choice.rows[shown], max(seed for one in found for seed in one.scores)
    mixed = any(speed < 1 for speed in row.speeds) and row.speed > 1
    if len(row.candidate.scores) < FEW or shown == choice.near or mixed:
        every = {one.n for one in found}
        numbers = sorted(every if shown == choice.reference else {1, row.candidate.n})
        pair = (runs[shown][0], runs[choice.reference][0])
        if any(all(any(run is own for own in one.runs) for run in pair) for one in comparison.groups):
            return _sweep(runs[shown][0], numbers, [most + 1, most + 2, most + 3])
        return command("run", runs[shown][0], ("seed",), "--set", f"seed={most + 1}")
    return comparison.commands[shown] if row.candidate.early else command_on("export", runs[shown][0])


def _others(comparison: Comparison) -> str:
    """A sweep over other n, where only one was run."""
    runs = comparison.runs[0] if comparison.runs else []
    if not runs:
        return ""
    n, clients = runs[0].n, runs[0].experiment.clients
    numbers = sorted({1, max(1, n // 2), n, min(2 * n, clients), min(4 * n, clients)})
    first = min(run.experiment.seed for run in runs)
    return _sweep(runs[0], numbers, [first, first + 1, first + 2])


def _sweep(run: RunFacts, numbers: Sequence[int], seeds: Sequence[int]) -> str:
    over = ("--cohorts", ",".join(map(str, numbers)), "--seeds", ",".join(map(str, seeds)))
    return command("sweep", run, ("cohorts", "seed"), *over)
