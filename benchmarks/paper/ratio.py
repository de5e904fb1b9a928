"""CPU hours for an hour of a round, by who takes part and how much they train: which of it is the paper's?

python benchmarks/paper/ratio.py --data DATA
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from cpfl.data.given import Given
from cpfl.federation.selection.base import round_cpu_seconds
from cpfl.settings import experiment_file
from cpfl.task.overview import assignment_view
from cpfl.task.task import build_task

SEEDS = range(90, 95)
WAYS: dict[str, list[str]] = {
    "an epoch of all clients": [],
    "an epoch of 50 clients": ["federation.participants=50"],
    "five steps of 50 clients": ["federation.participants=50", "federation.local_steps=5"],
}


def ratio(seed: int, way: list[str], data: Path) -> float:
    """At n = 1 and α = 0.1."""
    assignments = ["cohorts=1", f"seed={seed}", "data.public=tinyimagenet32", "data.public_fit=exact", *way]
    experiment = experiment_file.load("cifar10", assignments)
    task = build_task(experiment, [data], Given())
    (cpu_seconds,) = round_cpu_seconds(
        experiment.federation, task.fleet, task.data.clients.training_sizes, task.cohorts
    )
    (cohort,) = assignment_view(task).by_cohort
    return cpu_seconds / 3600 / cohort.hours_per_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    words = parser.parse_args()
    for name, way in WAYS.items():
        found = [ratio(seed, way, words.data) for seed in SEEDS]
        print(f"{name}: {statistics.fmean(found):.1f} ({', '.join(f'{one:.1f}' for one in found)})")


if __name__ == "__main__":
    main()
