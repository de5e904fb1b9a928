"""Where would stopping rules have ended a run, and how accurate was the ensemble of all cohort models then?

Reads what `aggregations.py` wrote of runs with snapshots by rounds. Accuracies are those of the ensemble from which the
recipe cpfl distills. `confidence` is 1 minus the mean entropy of its prediction on the public set, relative to uniform.

    python benchmarks/paper/rules.py results/paper/aggregations.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cpfl.federation import stopping

METRICS, GAINS = ("ensemble-accuracy", "public-agreement", "confidence"), (1.0, 1.5, 2.0, 4.0)
AGGREGATION = "probabilities, labels"


def spent(row: dict[str, Any], evaluations: int, metric: str) -> float:
    """CPU hours by then, those of so many evaluations included; the server's own work is not counted."""
    return float(row["cpu_hours"]) + evaluations * float(row["evaluation_cpu_hours"].get(metric, 0.0))


def stop_after(points: Sequence[stopping.Point], gain: float, window: int) -> int | None:
    """The evaluation (counted from 1) after which the rule `joint` would have stopped; None: it would not have."""
    return next((k for k in range(1, len(points) + 1) if stopping.converged(points[:k], gain, window)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=6, help="evaluations that the rule looks back")
    parser.add_argument("file", type=Path)
    words = parser.parse_args()
    rows = [row for row in json.loads(words.file.read_text()) if row["models"].startswith("round ")]
    print("| run | metric | gain | stops after | CPU hours | ensemble %, validation | test |")
    print("|---|---|---|---|---|---|---|")
    for name, found in groupby(rows, lambda row: str(row["folder"])):
        run = list(found)
        for metric in METRICS:
            points = [(spent(row, k, metric), row["evaluations"][metric]) for k, row in enumerate(run, 1)]
            for gain in GAINS:
                end = stop_after(points, gain, words.window)
                row = run[(end or len(run)) - 1]
                when = row["models"] if end else f"not by {row['models']}"
                if len(run) < words.window:
                    when = "too few evaluations"
                print(
                    f"| {name} | {metric} | {gain:g} | {when} | {points[(end or len(run)) - 1][0]:,.0f} | "
                    f"{row['validation'][AGGREGATION]:.1f} | {row['test'][AGGREGATION]:.1f} |"
                )


if __name__ == "__main__":
    main()
