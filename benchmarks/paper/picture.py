r"""The README's picture: accuracy against CPU hours and against hours, as published and as measured here.

And the accuracy of the ensemble of all cohort models while they trained, by the preset's rule.

    python benchmarks/paper/picture.py --runs results/paper/runs.json --out docs/results/trade-off-paper.png \
        --evaluations docs/results/evaluations.png
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import tables

from cpfl.presets.published import published
from cpfl.reports import cohort_figures, style
from cpfl.settings import experiment_file

PAPER, SAME, OURS = "from the paper", "the paper's rule and recipe, here", "cifar10-cpfl, here"

DOMAINS = {"CPU hours": [400, 9500], "hours": [30, 560]}
TICKS = {"CPU hours": [500, 1000, 2000, 4000, 8000], "hours": [50, 100, 200, 400]}


def printed() -> list[dict[str, Any]]:
    """The n for which the paper prints accuracy, hours and CPU hours."""
    figures = published(experiment_file.load("cifar10", []))
    assert figures is not None
    keys = {"hours": "hours", "cpu_hours": "CPU hours", "student": "student %"}
    rows = [row for row in figures["by_n"] if all(key in row for key in keys)]
    return [{"n": row["n"], "way": PAPER} | {name: row[key] for key, name in keys.items()} for row in rows]


def like(rows: list[dict[str, Any]], preset: str, augmented: bool) -> list[dict[str, Any]]:
    """Those whose server and distillation are the preset's, with α = 0.1.

    Older rows have no `server_args` where these are the defaults, as the preset's are.
    """
    federation = experiment_file.load(preset, []).federation.model_dump(exclude_defaults=True)
    older = {key: value for key, value in federation.items() if key != "server_args"}
    return tables.once(
        r for r in rows
        if r["experiment"] == preset and r["alpha"] == 0.1 and r["augmented validation"] == augmented
        and r["federation"] in (federation, older) and not r["changes of the recipe"]
    )  # fmt: skip


def measured(rows: list[dict[str, Any]], preset: str, augmented: bool, way: str) -> list[dict[str, Any]]:
    """Means over runs, by n."""
    mine = like(rows, preset, augmented)
    keys = {"hours": "hours", "cpu_hours": "CPU hours", "student_accuracy": "student %"}
    return [
        {"n": n, "way": way} | {name: statistics.fmean(r[k] for r in mine if r["n"] == n) for k, name in keys.items()}
        for n in sorted({r["n"] for r in mine})
    ]


def panel(axis: str, shown: bool) -> style.Spec:
    """One cost against accuracy. A line connects the n that were measured here; the paper prints costs of too few."""
    scale = {"type": "log", "nice": False, "domain": DOMAINS[axis]}
    legend = {"orient": "bottom", "title": None, "labelLimit": 300} if shown else None
    base = {
        "x": style.field(f"{axis}:Q", scale=scale, axis={"format": style.PLAIN, "values": TICKS[axis]}),
        "y": style.field(
            "student %:Q", scale={"domain": [42, 82], "nice": False}, title="global model, test accuracy in %"
        ),
        "color": style.colour_of("way", [OURS, SAME, PAPER]) | {"legend": legend},
    }
    label = base | {"text": style.field("label:N")}
    ours, theirs = style.only(f"datum.way !== '{PAPER}'"), style.only(f"datum.way === '{PAPER}'")
    free, taken = (style.only(f"datum['crowded, {axis}'] === {crowded}") for crowded in ("false", "true"))
    layers = [
        style.mark("line", base, ours, order=False),
        style.mark("point", base, filled=True, size=55),
        style.mark("text", label, free, theirs, align="left", dx=7, dy=-5, fontSize=11),
        style.mark("text", label, free, ours, align="left", dx=7, dy=9, fontSize=11),
        style.mark("text", label, taken, align="right", dx=-5, dy=-7, fontSize=11),
    ]
    return {"layer": layers, "width": 310, "height": 300}


def drawn(rows: list[dict[str, Any]], axis: str) -> list[tuple[dict[str, Any], float, float]]:
    """What is drawn and where: the points, each with a dense row of those on the line to the next n."""
    points = [(row, row[axis], row["student %"]) for row in rows]
    for one, other in itertools.pairwise(row for row in rows if row["way"] != PAPER):
        if one["way"] == other["way"]:
            for share in (step / 40 for step in range(1, 40)):
                cost = one[axis] * (other[axis] / one[axis]) ** share
                points.append((one, cost, one["student %"] + share * (other["student %"] - one["student %"])))
    return points


def crowded(row: dict[str, Any], rows: list[dict[str, Any]], axis: str) -> bool:
    """Whether anything else is where this one's label would be: to the right, the paper's above and ours below."""
    low, high = (-0.5, 1.8) if row["way"] == PAPER else (-2.3, 0.3)
    others = [point for point in drawn(rows, axis) if point[0]["way"] != row["way"]]
    return any(1.03 < cost / row[axis] < 1.5 and low < height - row["student %"] < high for _, cost, height in others)


def evaluations(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Evaluations of the ensemble of all cohort models, of the lowest seed of every n."""
    first = {r["n"]: r for r in sorted(rows, key=lambda r: -r["seed"])}
    points = [
        {
            "n": n,
            "seed": "first",
            "round": rounds,
            "cpu": cpu,
            "accuracy": accuracy,
            "stop": rounds == first[n]["rounds of cohorts"][0],
        }
        for n in sorted(first)
        for rounds, cpu, accuracy in first[n]["evaluations: round, CPU hours, %"]
    ]
    spec = cohort_figures.evaluations(points, sorted(first), "accuracy on validation samples, %", {"seed": "first"})
    return spec | {"title": "cifar10-cpfl: the ensemble of all cohort models"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluations", type=Path, required=True)
    words = parser.parse_args()
    runs = json.loads(words.runs.read_text())
    rows = [*printed(), *measured(runs, "cifar10", True, SAME), *measured(runs, "cifar10-cpfl", False, OURS)]
    for row in rows:
        row["label"] = f"n = {row['n']:g}"
        row |= {f"crowded, {axis}": crowded(row, rows, axis) for axis in DOMAINS}
        print(row["way"], row["label"], *(f"{key} {row[key]:,.1f}" for key in ("student %", "hours", "CPU hours")))
    title = {
        "text": "CIFAR-10 over 200 clients, α = 0.1: what accuracy costs",
        "subtitle": "public set: 40,000 images of Tiny-ImageNet here, 100,000 of STL-10 in the paper",
    }
    both = {"title": title, "data": {"name": "rows"}, "hconcat": [panel("CPU hours", True), panel("hours", False)]}
    style.save(style.SHARED | both | style.datasets(rows=rows), words.out)
    style.save(evaluations(like(runs, "cifar10-cpfl", False)), words.evaluations)


if __name__ == "__main__":
    main()
