"""The paper's figures from the runs in runs.json, stopped as the authors' scripts do; diamonds are the paper's values.

Accuracy, hours, CPU hours and traffic against n; for each α the finish times of the cohorts, and the samples of a
cohort against its training time. A cohort's hours are its rounds times the round time of its slowest client, since all
clients take part. The round time is computed from the cohorts, which needs the data.

    python benchmarks/paper/figures.py --data DATA --runs results/paper/runs.json --out results/paper
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import tables

from cpfl.data.given import Given
from cpfl.presets.published import published
from cpfl.reports import cohort_figures, figures, style
from cpfl.reports.tables import by_cohorts
from cpfl.settings import experiment_file
from cpfl.task.overview import assignment_view
from cpfl.task.task import build_task

Rows = list[dict[str, Any]]
BESIDE = "; public set: Tiny-ImageNet here, STL-10 in the paper (diamonds)"
LARGEST = 32  # the paper draws the samples of cohorts up to this n
QUORUM = 75  # per cent: "within less than 5 hours" at n = 200, it says


def against_n(runs: Rows, out: Path) -> None:
    """Every measure, a line for each α."""
    by_alpha, paper = {}, {}
    for alpha in sorted({run["alpha"] for run in runs}):
        label = f"α = {alpha:g}"
        by_alpha[label] = by_cohorts(run | {"cohorts": run["n"]} for run in runs if run["alpha"] == alpha)
        carried = published(experiment_file.load("cifar10", [f"data.alpha={alpha}"]))
        paper[label] = carried["by_n"] if carried else []
    for name in figures.AGAINST:
        spec = figures.against_n(name, by_alpha, paper)
        title = style.FIGURES[name]["title"] + BESIDE * bool(spec["datasets"]["paper"])
        print(style.save(spec | {"title": title}, out / f"{name}.png"))


def cohorts_of(run: dict[str, Any], data: Path) -> Rows:
    """Samples and hours of every cohort of a run."""
    settings = {"cohorts": run["n"], "seed": run["seed"], "data.alpha": run["alpha"], "data.public": run["public"]}
    fit = ["data.public_fit=exact"]  # the stand-in has the training images' shape
    experiment = experiment_file.load("cifar10", [*(f"{key}={value}" for key, value in settings.items()), *fit])
    by_cohort = assignment_view(build_task(experiment, [data], Given())).by_cohort
    found = [
        {"n": run["n"], "seed": run["seed"], "samples": row.samples, "hours": rounds * row.hours_per_round}
        for row, rounds in zip(by_cohort, run["rounds of cohorts"], strict=True)
    ]
    last = max(row["hours"] for row in found)
    if abs(last - run["hours"]) > 0.01 * run["hours"]:
        raise SystemExit(
            f"{run['folder']} ended after {run['hours']:.1f} h, the rounds of its cohorts take {last:.1f} h"
        )
    return found


def stopped(cohorts: Rows) -> Rows:
    """The share of each n's cohorts that had stopped by an hour."""
    rows: Rows = []
    for n in sorted({one["n"] for one in cohorts}):
        ends = sorted(one["hours"] for one in cohorts if one["n"] == n)
        steps = [{"n": n, "hours": hours, "share": 100 * (i + 1) / len(ends)} for i, hours in enumerate(ends)]
        rows += [{"n": n, "hours": 0, "share": 0}, *steps[:-1], steps[-1] | {"last": True}]
    return rows


def of_cohorts(alpha: float, cohorts: Rows, out: Path) -> None:
    """Their finish times, and their samples against their hours."""
    numbers = tuple(sorted({one["n"] for one in cohorts}))
    rows = stopped(cohorts)
    most = {row["n"]: row["hours"] for row in reversed(rows) if row["share"] >= QUORUM}
    finished = ", ".join(f"n = {n} after {most[n]:.1f} h" for n in numbers)
    print(f"α = {alpha:g}: {QUORUM} % of the cohorts had stopped at {finished}")
    title = {"title": f"Finish times of the cohorts, α = {alpha:g}"}
    print(style.save(cohort_figures.finish_times(rows, numbers) | title, out / f"finish-times-{alpha:g}.png"))
    few = [one for one in cohorts if 1 < one["n"] <= LARGEST]
    title = {"title": f"Samples in a cohort against its hours, α = {alpha:g}"}
    spec = cohort_figures.sizes(few, sorted({one["n"] for one in few}))
    print(style.save(spec | title, out / f"samples-{alpha:g}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    words = parser.parse_args()
    found = [run for run in json.loads(words.runs.read_text()) if run["experiment"] == "cifar10"]
    runs = tables.once(run for run in found if run["augmented validation"])
    against_n(runs, words.out)
    for alpha in sorted({run["alpha"] for run in runs}):
        each = (cohorts_of(run, words.data) for run in runs if run["alpha"] == alpha)
        of_cohorts(alpha, [one for several in each for one in several], words.out)


if __name__ == "__main__":
    main()
