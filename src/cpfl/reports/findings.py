"""Titles of figures that state what the data show; empty where there is nothing to state."""

from collections.abc import Mapping, Sequence

from cpfl.reports.reading import RunFacts
from cpfl.reports.sentences import fixed, number
from cpfl.reports.style import Row, Rows


def fall(rows: Sequence[Row], key: str, what: str, unit: str) -> str:
    """From n = 1, or the smallest n, to the n with the lowest value."""
    if len(rows) < 2:
        return ""
    first, least = rows[0], min(rows, key=lambda row: row[key])
    if least is first:
        return f"{what} are lowest at n = {first['cohorts']}: {number(first[key])} {unit}"
    ends = (
        f"from {number(first[key])} {unit} at n = {first['cohorts']} to {number(least[key])} at n = {least['cohorts']}"
    )
    return f"{what} fall {ends}"


def front(rows: Sequence[Row], metric: str) -> str:
    """Which n are worth choosing."""
    best = [
        row["cohorts"]
        for row in rows
        if not any(
            other["hours"] <= row["hours"] and other["student_accuracy"] >= row["student_accuracy"] and other is not row
            for other in rows
        )
    ]
    if len(rows) < 2:
        return ""
    if len(best) == len(rows):
        return "Every n is a compromise: none is both sooner and better than another"
    return f"Worth choosing among: n = {', '.join(map(str, best))}; the others are beaten in hours and {metric}"


def lost(rows: Sequence[Row]) -> str:
    """What is lost by training apart, won back by the ensemble, and lost by distilling, at the largest n."""
    plain = next((row for row in rows if row["cohorts"] == 1), None)
    split = [row for row in rows if row["cohorts"] > 1]
    if not plain or not split:
        return ""
    row = split[-1]
    apart = plain["student_accuracy"] - row["ensemble_accuracy"]
    distilling = row["ensemble_accuracy"] - row["student_accuracy"]
    by_n = f"{'loses' if apart >= 0 else 'gains'} {fixed(apart, 1)} points by splitting"
    by_student = f"{'loses' if distilling >= 0 else 'gains'} {fixed(distilling, 1)} by distilling"
    return f"n = {row['cohorts']} {by_n} and {by_student}"


def links(rows: Sequence[Row]) -> str:
    """The share of the traffic between servers."""
    shares = [
        (row["cohorts"], 100 * row["global_gb"] / row["comm_gb"])
        for row in rows
        if row["cohorts"] > 1 and row["global_gb"] is not None and row["comm_gb"]
    ]
    if not shares:
        return ""
    n, share = max(shares, key=lambda one: one[1])
    text = fixed(share, 1) if share >= 0.1 else "less than 0.1"
    return f"Between servers is {text} % of the traffic at n = {n}"


def waiting(rows: Rows, n: int, seed: str) -> str:
    """How much clients wait, and the straggler of the last cohort."""
    own = [row for row in rows if row["n"] == n and row["seed"] == seed]
    total = sum(row["hours"] for row in own)
    if not total:
        return ""
    last = max(own, key=lambda row: row["hours"])
    share = 100 * sum(row["hours"] - row["busy"] for row in own) / total
    slowest = f"client {last['slowest']} is the slowest in cohort {last['cohort']}, which ends last"
    return f"Clients wait {share:.0f} % of the time at n = {n}, seed {seed}; {slowest}"


def split(run: RunFacts) -> str:
    """What a run's cohorts are."""
    sizes = [cohort.samples for cohort in run.cohorts if cohort.samples]
    if run.n == 1 or not sizes:
        return ""
    return f"n = {run.n}: {run.experiment.clients:,} clients in cohorts of {min(sizes):,} to {max(sizes):,} samples"


def finishing(rows: Rows) -> str:
    """How long the last half of the cohorts takes, at the largest n."""
    most = max((row["n"] for row in rows), default=1)
    seeds = {row["seed"] for row in rows if row["n"] == most}
    halves, ends = [], []
    for seed in seeds:
        own = [row for row in rows if row["n"] == most and row["seed"] == seed]
        if most > 1 and own[-1].get("last"):
            halves.append(next(row["hours"] for row in own if row["share"] >= 50))
            ends.append(own[-1]["hours"])
    if not ends:
        return ""
    half, end = sum(halves) / len(halves), sum(ends) / len(ends)
    return f"At n = {most} half of the cohorts have stopped after {number(half)} h, the last after {number(end)} h"


def stopping(rows: Rows, ends: Mapping[int, float], metric: str) -> str:
    """How early an n has all but one point of its final score; `ends` are the hours at which each n stopped."""
    found = []
    for n in sorted({row["n"] for row in rows}):
        own = [row for row in rows if row["n"] == n]
        final = own[-1]
        early = next(row for row in own if row["accuracy"] >= final["accuracy"] - 1)
        if early["hours"] < 0.8 * ends.get(n, 0.0):
            found.append((early["hours"] / ends[n], n, early["hours"]))
    if not found:
        return ""
    _, n, hours = min(found)
    text = f"after {number(hours)} h; it stopped after {number(ends[n])} h"
    return f"n = {n} is within a point of its final {metric} {text}"
