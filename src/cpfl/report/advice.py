"""Which n to take: one plain sentence for a tolerated drop in accuracy, with its reasons."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpfl.errors import SettingError

MAX_DROP = 2.0  # points of accuracy that most would give up for time; the paper's n = 4 loses less
NOTABLE = 1.1  # a speed-up from which on the number is given
Row = Mapping[str, Any]


class Advice(NamedTuple):
    """The recommended n, the sentence that says so, and the reasons for and against it."""

    n: int | None
    sentence: str
    reasons: list[str]


def check_max_drop(max_drop: float) -> None:
    """Refuse what is not a number of accuracy points."""
    if not 0 <= max_drop <= 100:  # also false for nan
        raise SettingError(f"max_drop = {max_drop:g} is not allowed: points of accuracy, 0 to 100")


def advise(rows: Sequence[Row], max_drop: float = MAX_DROP) -> Advice:
    """The fastest n whose mean score is at most `max_drop` points below that of plain federated learning."""
    if not rows:
        return Advice(None, "No run is finished yet, so no n can be recommended.", [])
    if len(rows) == 1:
        n = rows[0]["cohorts"]
        hint = "cpfl sweep with several --cohorts runs others."
        return Advice(None, f"Only n = {n} has been run, so there is nothing to choose between; {hint}", _doubts(rows))
    metric, plain = _metric(rows[0]), next((row for row in rows if row["cohorts"] == 1), None)
    base = plain or max(rows, key=lambda row: row["student_accuracy"])
    near = [row for row in rows if base["student_accuracy"] - row["student_accuracy"] <= max_drop]
    best = min(near, key=lambda row: (row["hours"], row["cpu_hours"]))
    against = "plain federated learning (n = 1)" if plain else f"n = {base['cohorts']}, the {_best(metric)} here"
    n = best["cohorts"]
    limit = f"{max_drop:g} point{'' if max_drop == 1 else 's'}"
    if best is base:
        sentence = f"Take n = {n}: no other n is faster and stays within {limit} of its {metric}."
        cost = f"in {_hours(best)} for {_number(best['cpu_hours'])} CPU hours"
        reasons = [f"It reaches {metric} {best['student_accuracy']:.1f} % {cost}."]
    else:
        sentence = (
            f"Take n = {n}: it ends after {_hours(best)}, {_times(base, best)} {against}, and {_lost(base, best)}."
        )
        reasons = [
            f"Of all n that lose at most {limit} it is the fastest.",
            f"Training costs {_number(best['cpu_hours'])} CPU hours instead of {_number(base['cpu_hours'])}, "
            f"and {_number(best['comm_gb'])} GB of traffic instead of {_number(base['comm_gb'])}.",
        ]
    faster = [row for row in rows if row["hours"] < best["hours"]]
    if faster:
        other = min(faster, key=lambda row: base["student_accuracy"] - row["student_accuracy"])
        lost = _lost(base, other, max_drop)
        reasons.append(
            f"n = {other['cohorts']} would be faster still ({_hours(other)}), but {lost}, more than {limit}."
        )
    return Advice(n, sentence, reasons + _within_spread(base, best) + _doubts(rows, plain is None))


def _within_spread(base: Row, best: Row) -> list[str]:
    if best is base or min(base["seeds"], best["seeds"]) < 2:
        return []
    unsure = [
        what
        for what, key in ((_metric(base), "student_accuracy"), ("hours", "hours"))
        if abs(base[key] - best[key]) < max(base[f"{key}_spread"], best[f"{key}_spread"])
    ]
    sentence = f"The difference in {' and '.join(unsure)} is smaller than the spread over seeds: run more seeds."
    return [sentence] if unsure else []


def _doubts(rows: Sequence[Row], without_plain: bool = False) -> list[str]:
    doubts = []
    if without_plain:
        doubts.append(
            f"There is no finished run with n = 1, so drops are measured against the {_best(_metric(rows[0]))} n."
        )
    if single := ", ".join(str(row["cohorts"]) for row in rows if row["seeds"] == 1):
        doubts.append(f"One seed only for n = {single}: hours depend on one slow device, so run more seeds.")
    if cut_off := ", ".join(str(row["cohorts"]) for row in rows if row["cut_off"]):
        doubts.append(f"max_rounds stopped cohorts before they had converged at n = {cut_off}.")
    return doubts


def _number(value: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hours(row: Row) -> str:
    return f"{_number(row['hours'])} h"


def _times(base: Row, best: Row) -> str:
    if not best["hours"]:
        return "at once, unlike"
    times = base["hours"] / best["hours"]
    return f"{times:.1f} times faster than" if times >= NOTABLE else "hardly sooner than"


def _lost(base: Row, row: Row, limit: float = math.inf) -> str:
    """The drop in words, with one more digit where it would round to the limit that it exceeds."""
    lost = base["student_accuracy"] - row["student_accuracy"]
    digits = 2 if f"{lost:.1f}" == f"{limit:.1f}" else 1
    values = f"({row['student_accuracy']:.{digits}f} % instead of {base['student_accuracy']:.{digits}f} %)"
    way = "loses" if lost > 0 else "gains"
    return f"{way} {abs(lost):.{digits}f} points of {_metric(row)} {values}"


def _metric(row: Row) -> str:
    return str(row.get("metric", "accuracy"))


def _best(metric: str) -> str:
    return "most accurate" if metric.startswith("accuracy") else "best"
