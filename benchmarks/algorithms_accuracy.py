"""Accuracy and cost of algorithms, selection and assignment rules on CIFAR-10 with α = 0.1, for n = 1, 4 and 16.

A fifth of a cohort's clients takes part in a round: with all of them there is nothing to select, so Oort and REFL would
be FedAvg. Rows whose phones come and go (FedScale's availability trace) have a FedAvg of their own.

    python benchmarks/algorithms_accuracy.py --data DIR --runs runs/algorithms --out results/algorithms/accuracy.json
    python benchmarks/algorithms_accuracy.py … --rows "fedavg;oort" --cohorts 4,16 --seeds 90,91   # a share of the work
    python benchmarks/algorithms_accuracy.py … --rows none                                         # the tables alone

Several processes may share the rows, also the same ones. A run of another process is left to it, a finished run is not
repeated, an interrupted one is resumed. Each process writes the JSON file, and a table, from all finished runs.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpfl
from cpfl.errors import CpflError
from cpfl.runs import files

BASE: dict[str, Any] = {"data.alpha": 0.1, "federation.participation": 0.2, "snapshots": ""}
AWAY = {"devices.availability": "fedscale"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    # μ as FedScale sets it (proxy_mu), in the range that Li et al. 2020 search: 0.001 to 1.
    "fedprox": {"federation.client": "fedprox", "federation.client_args.mu": 0.1},
    # It takes no momentum, so its rate is FedAvg's over 1 − 0.9: its steps become as long.
    "scaffold": {"federation.client": "scaffold", "federation.momentum": 0.0, "federation.lr": 0.02},
    # Flower's defaults of FedYogi: η = 0.01, τ = 0.001; the latter is what Reddi et al. 2021, section 5.3, advise.
    "fedyogi": {"federation.server": "fedyogi", "federation.server_args": {"lr": 0.01, "tau": 1e-3}},
    "oort": {"federation.selection": "oort"},
    "fedavg, away": AWAY,
    "fedavg, away, over-selected": {**AWAY, "federation.over_selection": 0.3},
    # Both halves: least available first, and late updates damped; 30 % more are selected, as FedScale's overcommitment.
    "refl": {
        **AWAY, "federation.selection": "refl", "federation.over_selection": 0.3,
        "federation.straggler_policy": "stale",
    },
}  # fmt: skip
ASSIGNMENT_RULES = {
    f"assignment: {rule}": {"assignment.rule": rule}
    for rule in ("speed", "label-balanced", "label-clustered", "multi-objective")
}
ROWS = ALGORITHMS | ASSIGNMENT_RULES
FIGURES = {
    "teacher_accuracy_mean": ("teachers %", 1),
    "student_accuracy": ("student %", 1),
    "ensemble_accuracy": ("ensemble %", 1),
    "hours": ("hours", 1),
    "cpu_hours": ("CPU hours", 0),
    "wasted_cpu_hours": ("of them wasted", 0),
    "comm_gb": ("traffic GB", 1),
    "rounds": ("rounds", 0),
}


def main() -> None:
    words = parsed()
    names = [] if words.rows == "none" else list(ROWS) if words.rows == "all" else words.rows.split(";")
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"--rows: {', '.join(unknown)} unknown; known: all, none, {'; '.join(ROWS)}")
    for seed in numbers(words.seeds):
        for cohorts in numbers(words.cohorts):
            for name in names:
                if cohorts > 1 or name in ALGORITHMS:  # one cohort has one assignment
                    run_row(name, cohorts, seed, words)
    rows = finished(words.runs)
    words.out.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(words.out, {"versions": versions_of(words.runs), "rows": rows})
    words.out.with_suffix(".md").write_text(table(rows))
    print(table(rows))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of all run folders")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file; the table is written next to it")
    parser.add_argument(
        "--rows", default="all", help=f"all, none, or some of, with semicolons between: {'; '.join(ROWS)}"
    )
    parser.add_argument("--cohorts", default="1,4,16")
    parser.add_argument("--seeds", default="90")
    parser.add_argument("--max-rounds", type=int, default=1000)
    parser.add_argument("--public", default="tinyimagenet32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings, of every run")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def plain(name: str) -> str:
    """A row's name as a folder's."""
    return "-".join(re.findall(r"[\w-]+", name))


def run_row(name: str, cohorts: int, seed: int, words: argparse.Namespace) -> None:
    """One run, unless it is finished or another process runs it."""
    path = words.runs / f"{plain(name)}-n{cohorts:02d}-seed{seed}"
    common: dict[str, Any] = {"data": words.data, "engine": words.engine, "device": words.device}
    try:
        if (path / "summary.json").is_file():
            return
        if (path / "run.json").is_file():
            run = cpfl.resume(path, **common)
        else:
            settings = BASE | ROWS[name] | {"name": f"algorithms-{path.name}", "cohorts": cohorts, "seed": seed}
            settings |= {"max_rounds": words.max_rounds, "data.public": words.public}
            settings |= cpfl.settings.experiment_file.parse_assignments(words.set)
            run = cpfl.run("cifar10", out=path, settings=settings, **common)
    except CpflError as error:  # a run that fails does not stop the others
        print(f"{path.name}: {error}", flush=True)
        return
    summary = run.summary
    print(f"{path.name}: student {summary['student_accuracy']:.1f} %, {summary['wall_seconds']:.0f} s", flush=True)


def finished(runs: Path) -> list[dict[str, Any]]:
    """Every finished run's row."""
    found = []
    for path in sorted(runs.glob("*-n*-seed*/summary.json")):
        summary = files.read_json(path)
        for name in ROWS:
            if path.parent.name.startswith(f"{plain(name)}-n"):
                more = ("teacher_accuracy_std", "wall_seconds", "distill_seconds", "engine", "device", "cut_off")
                row = {"row": name, "cohorts": summary["cohorts"], "seed": summary["seed"]}
                found.append(row | {key: summary[key] for key in (*FIGURES, *more)})
    return sorted(found, key=lambda row: (row["cohorts"], list(ROWS).index(row["row"]), row["seed"]))


def versions_of(runs: Path) -> list[dict[str, str]]:
    """The versions of the finished runs, each once: the tables may be written elsewhere."""
    each = [files.read_json(path.parent / "run.json")["versions"] for path in runs.glob("*-n*-seed*/summary.json")]
    return [dict(one) for one in sorted({tuple(sorted(versions.items())) for versions in each})]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, and their standard deviation."""
    heads = ["n", "row", "seeds", *(head for head, _ in FIGURES.values())]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for cohorts in sorted({row["cohorts"] for row in rows}):
        for name in ROWS:
            group = [row for row in rows if (row["cohorts"], row["row"]) == (cohorts, name)]
            if group:
                cells = [cell([row[key] for row in group], digits) for key, (_, digits) in FIGURES.items()]
                lines.append(f"| {cohorts} | {name} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(values: Sequence[float], digits: int) -> str:
    spread = f" ± {statistics.pstdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):,.{digits}f}{spread}"


if __name__ == "__main__":
    main()
