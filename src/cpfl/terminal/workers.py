"""The workers of a cluster on the screen: who trains which cohorts, and how busy each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 6  # workers with a line of their own
FEW = 8  # cohorts that are named


def lines(load: Mapping[str, Any], most: int = MOST) -> list[str]:
    """A line for each worker, the busiest first if there are more than have room."""
    rows = list(load.get("workers", ()))
    if not rows:
        return []
    chosen = rows if len(rows) <= most else sorted(rows, key=lambda row: -row["samples_per_second"])[:most]
    found = [f"{'worker':<12}{'load':>6}{'samples/s':>12}   cohorts"]
    found += [
        f"{row['worker']:<12}{100 * row['load']:>4.0f} %{row['samples_per_second']:>12,.0f}   {named(row['cohorts'])}"
        for row in chosen
    ]
    if rest := len(rows) - len(chosen):
        busy = sum(bool(row["cohorts"]) for row in rows)
        found.append(f"and {rest} more; {busy} of {len(rows)} workers have cohorts")
    return found


def named(cohorts: Sequence[int]) -> str:
    """The first few by number, and how many more."""
    first = ", ".join(map(str, cohorts[:FEW]))
    return f"{first} and {len(cohorts) - FEW} more" if len(cohorts) > FEW else first or "none"
