"""When would another patience have stopped the cohorts? The plateau rule, replayed on records of longer runs.

python benchmarks/paper/stops.py --patience 50,100 RUN...
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from cpfl.federation.stopping import Plateau
from cpfl.runs import records
from cpfl.runs.folder import RunFolder
from cpfl.settings import Stopping


def stopped(lines: list[dict[str, Any]], patience: int, window: int) -> tuple[int, bool]:
    """The round with which the rule ends a cohort, and whether it did so before its records end."""
    plateau = Plateau(Stopping(patience=patience, window=window))
    for line in lines:
        if plateau.update(line["round"], line["validation"], line["clock"], 0.0).stop:
            return line["round"], True
    return len(lines), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patience", default="50,100")
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("runs", nargs="+", type=Path)
    words = parser.parse_args()
    print("| n | seed | patience | rounds: least / median / most | mean | CPU hours | hours | not stopped by then |")
    print("|---|---|---|---|---|---|---|---|")
    for path in words.runs:
        folder = RunFolder.open(path)
        experiment = folder.experiment()
        lines = [records.read(folder.rounds(cohort)) for cohort in range(experiment.cohorts)]
        for patience in map(int, words.patience.split(",")):
            ends = [stopped(line, patience, words.window) for line in lines]
            rounds = [number for number, _ in ends]
            spent = [line[:number] for line, number in zip(lines, rounds, strict=True)]
            cpu = math.fsum(record["cpu_seconds"] for line in spent for record in line) / 3600
            hours = max(line[-1]["clock"] for line in spent) / 3600
            print(
                f"| {experiment.cohorts} | {experiment.seed} | {patience} | {min(rounds)} / "
                f"{statistics.median(rounds):.0f} / {max(rounds)} | {statistics.fmean(rounds):.0f} | {cpu:,.0f} | "
                f"{hours:,.0f} | {sum(not whole for _, whole in ends)} |"
            )


if __name__ == "__main__":
    main()
