"""Tables over finished runs, read from their folders only."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from cpfl.errors import RunFolderError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

MEASURES = (
    "teacher_accuracy_mean",
    "ensemble_accuracy",
    "student_accuracy",
    "hours",
    "cpu_hours",
    "comm_gb",
    "rounds",
)


def find_runs(root: Path) -> list[RunFolder]:
    """All run folders at or below a folder, at most two levels down."""
    if not root.is_dir():
        raise RunFolderError(f"there is no folder {root}")
    found = [path.parent for pattern in ("run.json", "*/run.json", "*/*/run.json") for path in root.glob(pattern)]
    return [RunFolder.open(path) for path in sorted(found)]


def by_cohorts(summaries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over seeds for every n, and the speed-up of the mean hours and CPU hours against n = 1."""
    groups: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for summary in summaries:
        groups[summary["cohorts"]].append(summary)
    rows = []
    for n, group in sorted(groups.items()):
        row: dict[str, Any] = {"cohorts": n, "seeds": len(group)}
        for key in MEASURES:
            values = [summary[key] for summary in group]
            row[key] = statistics.fmean(values)
            row[f"{key}_spread"] = statistics.pstdev(values)
        rows.append(row)
    base = next((row for row in rows if row["cohorts"] == 1), None)
    for row in rows:
        row["speed_up"] = base["hours"] / row["hours"] if base else None
        row["cpu_saving"] = base["cpu_hours"] / row["cpu_hours"] if base else None
    return rows


def trade_off(summaries: Iterable[Mapping[str, Any]]) -> Table:
    """The paper's question as one table: what does n cost, what does it gain?"""
    rows = by_cohorts(summaries)
    table = Table(title="What n costs and gains", title_justify="left")
    for name in ("n", "teachers %", "ensemble %", "student %", "hours", "CPU hours", "traffic GB", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("faster", justify="right")
    table.add_column("CPU saved", justify="right")
    for row in rows:
        several = row["seeds"] > 1
        table.add_row(
            str(row["cohorts"]),
            *(_figure(row, key, places, several) for key, places in zip(MEASURES, (1, 1, 1, 2, 2, 3, 0), strict=True)),
            "–" if row["speed_up"] is None else f"{row['speed_up']:.2f}×",
            "–" if row["cpu_saving"] is None else f"{row['cpu_saving']:.2f}×",
        )
    return table


def overview(folders: Iterable[RunFolder]) -> list[dict[str, Any]]:
    """One row a run: what it is and how far it has come."""
    rows = []
    for folder in folders:
        experiment, plan = folder.experiment(), folder.about()["plan"]
        last = [lines[-1] for cohort in range(len(plan)) if (lines := records.read(folder.rounds(cohort)))]
        summary = folder.summary()
        stopped = sum(bool(line["stop"]) for line in last)
        rows.append(
            {
                "path": str(folder.path),
                "name": experiment.name,
                "cohorts": experiment.cohorts,
                "clients": experiment.clients,
                "seed": experiment.seed,
                "state": "finished" if summary else f"{stopped} of {len(plan)} cohorts stopped",
                "rounds": sum(line["round"] for line in last),
                "hours": max((line["clock"] for line in last), default=0.0) / 3600,
                "student_accuracy": summary["student_accuracy"] if summary else None,
            }
        )
    return rows


def run_list(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The overview for a person."""
    table = Table()
    for name, justify in (("run", "left"), ("n", "right"), ("seed", "right"), ("state", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for name in ("rounds", "hours", "student %"):
        table.add_column(name, justify="right")
    for row in rows:
        accuracy = row["student_accuracy"]
        table.add_row(
            row["path"],
            str(row["cohorts"]),
            str(row["seed"]),
            row["state"],
            f"{row['rounds']:,}",
            f"{row['hours']:.2f}",
            "–" if accuracy is None else f"{accuracy:.2f}",
        )
    return table


def _figure(row: Mapping[str, Any], key: str, places: int, several: bool) -> str:
    spread = f" ± {row[f'{key}_spread']:,.{places}f}" if several else ""
    return f"{row[key]:,.{places}f}{spread}"
