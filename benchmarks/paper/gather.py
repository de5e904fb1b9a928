"""What finished runs came to, in one small file: their summaries, every cohort's rounds, and what was distilled later.

Rows that the file has of other folders stay.

python benchmarks/paper/gather.py --out results/paper/runs.json FOLDER...
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import kept

from cpfl.experiment import Distillation
from cpfl.runs import files, records
from cpfl.runs.folder import RunFolder

FIGURES = (
    "teacher_accuracy_mean", "teacher_accuracy_std", "ensemble_accuracy", "student_accuracy",
    "student_accuracy_best_epoch", "hours", "cpu_hours", "comm_gb", "rounds",
)  # fmt: skip


def row(path: Path) -> dict[str, Any]:
    """One run: what was set, what came of it."""
    folder, told = RunFolder.open(path), files.read_json(path / "summary.json")
    e = folder.experiment()
    found: dict[str, Any] = {
        "experiment": e.name,
        "folder": kept.name_of(path),
        "n": e.cohorts,
        "alpha": e.data.alpha,
        "seed": e.seed,
        "federation": e.federation.model_dump(exclude_defaults=True),
        "stopping": e.stopping.model_dump(exclude_defaults=True),
        "augmented validation": e.data.augment_validation,
        "public": e.data.public,
        "recipe": e.distillation.recipe,
        "besides": _besides(e.distillation),
    }
    found |= {key: round(told[key], 3) for key in FIGURES}
    found["seconds"] = {key: round(told[f"{key}_seconds"], 1) for key in ("wall", "distill")}
    if judged := records.read(folder.judgements()):
        found["judged: round, CPU hours, %"] = [
            [one["round"], round(one["cpu_hours"], 1), round(one["value"], 2)] for one in judged
        ]
    found["rounds of cohorts"] = [cohort["rounds"] for cohort in told["by_cohort"]]
    found["distilled"] = {
        one.parent.name: round(files.read_json(one)["student_accuracy"], 2)
        for one in sorted(path.glob("distillations/*/summary.json"))
    }
    return found


def _besides(settings: Distillation) -> dict[str, Any]:
    """What was set otherwise than the recipe has it."""
    plain = Distillation(recipe=settings.recipe).model_dump()
    return {key: value for key, value in settings.model_dump().items() if value != plain[key]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("folders", nargs="+", type=Path)
    words = parser.parse_args()
    paths = sorted({path.parent for folder in words.folders for path in folder.glob("**/summary.json")})
    rows = [row(path) for path in paths if (path / "run.json").is_file() and (path / "rounds").is_dir()]
    print(f"{kept.add(words.out, rows, ('folder',))} runs in {words.out}")


if __name__ == "__main__":
    main()
