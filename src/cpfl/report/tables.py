"""Tables over finished runs, read from their folders only."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from cpfl.errors import CpflError, RunFolderError
from cpfl.runs import records
from cpfl.runs.folder import RunFolder

COLUMNS = ("path", "name", "cohorts", "clients", "seed", "state", "rounds", "hours", "student_accuracy")
MEASURES = (
    "teacher_accuracy_mean",
    "teacher_accuracy_std",
    "ensemble_accuracy",
    "student_accuracy",
    "hours",
    "cpu_hours",
    "comm_gb",
    "rounds",
)


class _Column(NamedTuple):
    key: str
    head: str
    places: int
    main: bool  # shown in narrow places too
    spread: bool = False
    unit: str = ""


WIDE = 108
WASTED = "wasted_cpu_hours"
COLUMNS_OF_N = (
    _Column("cohorts", "n", 0, True),
    _Column("teacher_accuracy_mean", "teachers\n%", 1, True, True),
    _Column("ensemble_accuracy", "ensemble\n%", 1, False),
    _Column("student_accuracy", "student\n%", 1, True, True),
    _Column("hours", "hours", 2, True, True),
    _Column("cpu_hours", "CPU\nhours", 1, True, True),
    _Column("comm_gb", "traffic\nGB", 2, False),
    _Column("rounds", "rounds", 0, False),
    _Column("speed_up", "faster", 2, True, unit="×"),
    _Column("cpu_saving", "CPU\nsaved", 2, False, unit="×"),
)


def find_runs(root: Path) -> list[Path]:
    """All run folders at or below a folder, at most two levels down."""
    if not root.is_dir():
        raise RunFolderError(f"there is no folder {root}")
    found = [path.parent for pattern in ("run.json", "*/run.json", "*/*/run.json") for path in root.glob(pattern)]
    return sorted(found)


def by_cohorts(summaries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over seeds for every n, and the speed-up of the mean hours and CPU hours against n = 1."""
    groups: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for summary in summaries:
        groups[summary["cohorts"]].append(summary)
    rows = []
    for n, group in sorted(groups.items()):
        row: dict[str, Any] = {"cohorts": n, "seeds": len(group), "cut_off": sum(s.get("cut_off", 0) for s in group)}
        for key in MEASURES:
            values = [summary[key] for summary in group]
            row[key] = statistics.fmean(values)
            row[f"{key}_spread"] = statistics.pstdev(values)
        row[WASTED] = statistics.fmean(summary.get(WASTED, 0.0) for summary in group)  # runs may be older than this
        rows.append(row)
    base = next((row for row in rows if row["cohorts"] == 1), None)
    for row in rows:
        for ratio, key in (("speed_up", "hours"), ("cpu_saving", "cpu_hours")):
            row[ratio] = base[key] / row[key] if base and row[key] else None
    return rows


def trade_off(summaries: Iterable[Mapping[str, Any]], width: int) -> Table:
    """The paper's question as one table: what does n cost, what does it gain? Narrow places get the main columns."""
    rows = by_cohorts(summaries)
    several = any(row["seeds"] > 1 for row in rows)
    table = Table(title="What n costs and gains", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    shown = [column for column in COLUMNS_OF_N if width >= WIDE or column.main]
    for column in shown:
        table.add_column(column.head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_figure(row, column, several) for column in shown))
    if several:
        table.caption = f"mean ± standard deviation over {max(row['seeds'] for row in rows)} seeds"
    return table


class _Cell(NamedTuple):
    head: str
    key: str
    places: int
    spread: str = ""
    published: str = ""
    unit: str = ""


CELLS = (
    _Cell("n", "cohorts", 0),
    _Cell("teachers %", "teacher_accuracy_mean", 1, "teacher_accuracy_std", "teachers"),
    _Cell("student %", "student_accuracy", 1, "student_accuracy_spread", "student"),
    _Cell("gain", "gain", 1),
    _Cell("ensemble %", "ensemble_accuracy", 1, "ensemble_accuracy_spread"),
    _Cell("hours", "hours", 2, "hours_spread", "hours"),
    _Cell("CPU hours", "cpu_hours", 1, "cpu_hours_spread", "cpu_hours"),
    _Cell("wasted CPU hours", WASTED, 1),
    _Cell("traffic GB", "comm_gb", 2, "comm_gb_spread"),
    _Cell("rounds", "rounds", 0, "rounds_spread"),
    _Cell("faster", "speed_up", 2, unit="×"),
    _Cell("CPU saved", "cpu_saving", 2, unit="×"),
    _Cell("seeds", "seeds", 0),
)


def cells(rows: Iterable[Mapping[str, Any]], published: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The paper's teacher and student table, and what n costs, as text; published figures beside one's own."""
    printed = {row["n"]: row for row in published}
    rows, body = list(rows), []
    shown = [cell for cell in CELLS if cell.key != WASTED or any(row.get(WASTED) for row in rows)]
    for row in rows:
        alone = row["cohorts"] == 1  # its model is the result: there is no teacher, nothing is distilled
        gain = None if alone else row["student_accuracy"] - row["teacher_accuracy_mean"]
        own = {**row, "gain": gain} | (dict.fromkeys(("teacher_accuracy_mean", "ensemble_accuracy")) if alone else {})
        paper = printed.get(row["cohorts"], {})
        body.append([{"text": _own(own, cell), "paper": _printed(paper, cell)} for cell in shown])
    return {"head": [cell.head for cell in shown], "rows": body}


def _own(row: Mapping[str, Any], cell: _Cell) -> str:
    if row[cell.key] is None:
        return "–"
    several = row["seeds"] > 1 or cell.spread == "teacher_accuracy_std"
    spread = f" ± {row[cell.spread]:,.{cell.places}f}" if cell.spread and several else ""
    return f"{row[cell.key]:,.{cell.places}f}{spread}{cell.unit}"


def _printed(paper: Mapping[str, Any], cell: _Cell) -> str:
    if cell.published not in paper:
        return ""
    spread = paper.get(f"{cell.published}_spread")
    value = f"{paper[cell.published]:,.4g}"
    return value if spread is None else f"{value} ± {spread:g}"


def overview(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """One row a run: what it is and how far it has come."""
    rows = []
    for path in paths:
        try:
            rows.append(_row(RunFolder.open(path)))
        except CpflError as error:
            rows.append({**dict.fromkeys(COLUMNS), "path": str(path), "state": f"damaged: {error}"})
    return rows


def _row(folder: RunFolder) -> dict[str, Any]:
    experiment, plan = folder.experiment(), folder.about()["plan"]
    last = [lines[-1] for cohort in range(len(plan)) if (lines := records.read(folder.rounds(cohort)))]
    summary = folder.summary()
    stopped = sum(bool(line["stop"]) for line in last)
    return {
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


def run_list(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The overview for a person."""
    table = Table()
    for name, justify in (("run", "left"), ("n", "right"), ("seed", "right"), ("state", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for name in ("rounds", "hours", "student %"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["path"],
            _shown(row["cohorts"], "d"),
            _shown(row["seed"], "d"),
            row["state"],
            _shown(row["rounds"], ",d"),
            _shown(row["hours"], ".2f"),
            _shown(row["student_accuracy"], ".2f"),
        )
    return table


def _figure(row: Mapping[str, Any], column: _Column, several: bool) -> str:
    value = row[column.key]
    if value is None:
        return "–"
    spread = f" ± {row[f'{column.key}_spread']:,.{column.places}f}" if several and column.spread else ""
    return f"{value:,.{column.places}f}{spread}{column.unit}"


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
