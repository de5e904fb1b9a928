"""Which n to take: one plain sentence for a tolerated loss of accuracy, with its reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpfl.errors import SettingError

LOSS = 2.0  # points of accuracy that most would give for time; the paper's n = 4 loses less
NOTABLE = 1.1  # times faster from which on it is worth a figure
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Advice:
    """The recommended n, the sentence that says so, and what speaks for and against it."""

    n: int | None
    sentence: str
    reasons: list[str]


def check_loss(loss: float) -> float:
    """Points of accuracy, or a sentence."""
    if not 0 <= loss <= 100:  # also false for nan
        raise SettingError(f"--loss {loss:g} is not allowed: points of accuracy, 0 to 100")
    return loss


def advise(rows: Sequence[Row], loss: float = LOSS) -> Advice:
    """The fastest n whose mean accuracy is at most `loss` points below plain federated learning's."""
    if not rows:
        return Advice(None, "No run is finished yet, so no n can be recommended.", [])
    if len(rows) == 1:
        n = rows[0]["cohorts"]
        hint = "cpfl sweep with several --cohorts makes the others."
        return Advice(None, f"Only n = {n} has been run, so there is nothing to choose between; {hint}", _doubts(rows))
    plain = next((row for row in rows if row["cohorts"] == 1), None)
    base = plain or max(rows, key=lambda row: row["student_accuracy"])
    near = [row for row in rows if base["student_accuracy"] - row["student_accuracy"] <= loss]
    best = min(near, key=lambda row: (row["hours"], row["cpu_hours"]))
    against = "plain federated learning (n = 1)" if plain else f"n = {base['cohorts']}, the most accurate here"
    n = best["cohorts"]
    if best is base:
        sentence = f"Take n = {n}: no other n is faster and stays within {_points(loss)} of its accuracy."
        cost = f"in {_hours(best)} for {_number(best['cpu_hours'])} CPU hours"
        reasons = [f"It reaches {best['student_accuracy']:.1f} % {cost}."]
    else:
        sentence = (
            f"Take n = {n}: it ends after {_hours(best)}, {_times(base, best, 'hours')} {against}, "
            f"and {_lost(base, best)}."
        )
        reasons = [
            f"Of all n that lose at most {_points(loss)} it is the fastest.",
            f"Training costs {_number(best['cpu_hours'])} CPU hours instead of {_number(base['cpu_hours'])}, "
            f"and {_number(best['comm_gb'])} GB of traffic instead of {_number(base['comm_gb'])}.",
        ]
    faster = [row for row in rows if row["hours"] < best["hours"]]
    if faster:
        other = min(faster, key=lambda row: base["student_accuracy"] - row["student_accuracy"])
        reasons.append(
            f"n = {other['cohorts']} would be faster still ({_hours(other)}), but {_lost(base, other, loss)}, "
            f"more than {_points(loss)}."
        )
    return Advice(n, sentence, reasons + _within_spread(base, best) + _doubts(rows, plain is None))


def _within_spread(base: Row, best: Row) -> list[str]:
    if best is base or min(base["seeds"], best["seeds"]) < 2:
        return []
    unsure = [
        what
        for what, key in (("accuracy", "student_accuracy"), ("hours", "hours"))
        if abs(base[key] - best[key]) < max(base[f"{key}_spread"], best[f"{key}_spread"])
    ]
    if not unsure:
        return []
    return [f"The difference in {' and '.join(unsure)} is smaller than the spread over seeds: more seeds would tell."]


def _doubts(rows: Sequence[Row], without_plain: bool = False) -> list[str]:
    doubts = []
    if without_plain:
        doubts.append("There is no finished run with n = 1, so losses are measured against the most accurate n.")
    single = [str(row["cohorts"]) for row in rows if row["seeds"] == 1]
    if single:
        doubts.append(f"One seed only for n = {', '.join(single)}: hours hang on one slow device, so try more seeds.")
    cut = [str(row["cohorts"]) for row in rows if row["cut_off"]]
    if cut:
        doubts.append(f"max_rounds cut cohorts off before they had converged at n = {', '.join(cut)}.")
    return doubts


def _points(loss: float) -> str:
    return f"{loss:g} point{'' if loss == 1 else 's'}"


def _number(value: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hours(row: Row) -> str:
    return f"{_number(row['hours'])} h"


def _times(base: Row, best: Row, key: str) -> str:
    if not best[key]:
        return "at once, unlike"
    times = base[key] / best[key]
    return f"{times:.1f} times faster than" if times >= NOTABLE else "hardly sooner than"


def _lost(base: Row, row: Row, limit: float = math.inf) -> str:
    """The loss in words, with a digit more where it would look like the limit that it is above."""
    lost = base["student_accuracy"] - row["student_accuracy"]
    places = 2 if f"{lost:.1f}" == f"{limit:.1f}" else 1
    told = f"({row['student_accuracy']:.{places}f} % instead of {base['student_accuracy']:.{places}f} %)"
    way = "loses" if lost > 0 else "gains"
    return f"{way} {abs(lost):.{places}f} points of accuracy {told}"
