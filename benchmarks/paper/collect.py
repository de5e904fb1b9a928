"""Collects the results of finished runs in one small file: summaries, rounds of every cohort, later distillations.

Rows of other folders that are already in the file stay.

python benchmarks/paper/collect.py --out results/paper/runs.json FOLDER...
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import tables

from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder
from cpfl.settings import Distillation

FIGURES = (
    "teacher_accuracy_mean", "teacher_accuracy_std", "ensemble_accuracy", "student_accuracy",
    "student_accuracy_best_epoch", "hours", "cpu_hours", "comm_gb", "rounds",
)  # fmt: skip


def row(path: Path) -> dict[str, Any]:
    """The settings and the results of one run."""
    folder, summary = RunFolder.open(path), files.read_json(path / "summary.json")
    e = folder.experiment()
    found: dict[str, Any] = {
        "experiment": e.name,
        "folder": tables.name_of(path),
        "n": e.cohorts,
        "alpha": e.data.alpha,
        "seed": e.seed,
        "federation": e.federation.model_dump(exclude_defaults=True),
        "stopping": e.stopping.model_dump(exclude_defaults=True),
        "augmented validation": e.data.augment_validation,
        "public": e.data.public,
        "recipe": e.distillation.recipe,
        "changes of the recipe": _changes(e.distillation),
    }
    found |= {key: round(summary[key], 3) for key in FIGURES}
    found["seconds"] = {key: round(summary[f"{key}_seconds"], 1) for key in ("wall", "distill")}
    if evaluated := records.read(folder.evaluations()):
        found["evaluations: round, CPU hours, %"] = [
            [one["round"], round(one["cpu_hours"], 1), round(one["accuracy"], 2)] for one in evaluated
        ]
    found["rounds of cohorts"] = [cohort["rounds"] for cohort in summary["by_cohort"]]
    found["distilled"] = {
        one.parent.name: round(files.read_json(one)["student_accuracy"], 2)
        for one in sorted(path.glob("distillations/*/summary.json"))
    }
    return found


def _changes(settings: Distillation) -> dict[str, Any]:
    """Settings of the distillation that differ from those of its recipe."""
    plain = Distillation(recipe=settings.recipe).model_dump()
    return {key: value for key, value in settings.model_dump().items() if value != plain[key]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("folders", nargs="+", type=Path)
    words = parser.parse_args()
    paths = sorted({path.parent for folder in words.folders for path in folder.glob("**/summary.json")})
    rows = [row(path) for path in paths if (path / "run.json").is_file() and (path / "rounds").is_dir()]
    print(f"{tables.add(words.out, rows, ('folder',))} runs in {words.out}")


if __name__ == "__main__":
    main()
