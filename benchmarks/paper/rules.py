"""Where would stopping rules have ended a run, and what were the cohorts' models worth together then?

Reads what `joins.py` wrote of runs with snapshots by rounds; the test accuracy is that of the joined prediction by
which recipe cpfl teaches. `sureness` is one less the entropy of that prediction over the public set.

    python benchmarks/paper/rules.py results/paper/joins.json
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from cpfl.federation import joint

JUDGES, GAINS = ("ensemble", "public", "sureness"), (1.0, 1.5, 2.0, 4.0)
JOIN = "probabilities, labels"


def spent(row: dict[str, Any], leg: int, judge: str) -> float:
    """CPU hours by then, so many judgements included; what the server does itself is not counted."""
    return float(row["cpu_hours"]) + leg * float(row["judging"].get(judge, 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--legs", type=int, default=6)
    parser.add_argument("file", type=Path)
    words = parser.parse_args()
    rows = [row for row in json.loads(words.file.read_text()) if row["models"].startswith("round ")]
    print("| run | judge | gain | stops after | CPU hours | ensemble %, validation | test |")
    print("|---|---|---|---|---|---|---|")
    for name, found in groupby(rows, lambda row: str(row["folder"])):
        run = list(found)
        for judge in JUDGES:
            points = [(spent(row, leg, judge), row["judged"][judge]) for leg, row in enumerate(run, 1)]
            for gain in GAINS:
                end = joint.replayed(points, gain, words.legs)
                row = run[(end or len(run)) - 1]
                when = row["models"] if end else f"not by {row['models']}"
                if len(run) < words.legs:
                    when = "too few looks"
                print(
                    f"| {name} | {judge} | {gain:g} | {when} | {points[(end or len(run)) - 1][0]:,.0f} | "
                    f"{row['validation'][JOIN]:.1f} | {row['test'][JOIN]:.1f} |"
                )


if __name__ == "__main__":
    main()
