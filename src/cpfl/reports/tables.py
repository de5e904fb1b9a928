"""Tables over runs: means for every n, for a terminal and for the page, and the list of runs."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from cpfl.errors import printable
from cpfl.reports.reading import READ_ERRORS, damage, read
from cpfl.reports.style import ACCURACY, FIGURES, Row
from cpfl.reports.verdict import typical
from cpfl.runs.finding import find_runs

WIDE = 108  # characters of a terminal that shows every column
WASTED = "wasted_cpu_hours"
LINKS = ("client_gb", "global_gb")  # of the traffic
BY_LINK = "global_gb"
ACCURACIES = ("teacher_accuracy_mean", "teacher_accuracy_std", "ensemble_accuracy", "student_accuracy")
MEASURES = (*ACCURACIES, "hours", "cpu_hours", "comm_gb", "rounds")
LISTED = ("path", "name", "cohorts", "clients", "seed", "state", "rounds", "hours", "student_accuracy", "metric")


class _Column(NamedTuple):
    head: str  # a terminal breaks it at the space
    key: str
    digits: int = 0
    spread: str = ""  # key of the standard deviation on the page
    published: str = ""  # key of the paper's figure
    unit: str = ""


COLUMNS = [_Column(**column) for column in FIGURES["columns"]]
BY_KEY = {column.key: column for column in COLUMNS}
SLIM = 76  # columns from which there is space for standard deviations
NARROW = ("cohorts", "teacher_accuracy_mean", "student_accuracy", "hours", "cpu_hours", "speed_up")
TERMINAL = (*NARROW[:2], "ensemble_accuracy", *NARROW[2:5], "comm_gb", "rounds", "speed_up", "cpu_saving")


def by_cohorts(summaries: Iterable[Row]) -> list[dict[str, Any]]:
    """Mean and spread over seeds for every n, and how many times sooner and cheaper than n = 1 it is."""
    rows, given = [], list(summaries)
    for n in sorted({summary["cohorts"] for summary in given}):
        group = [summary for summary in given if summary["cohorts"] == n]
        row: dict[str, Any] = {"cohorts": n, "seeds": len(group), "cut_off": sum(s.get("cut_off", 0) for s in group)}
        row["metric"] = group[0].get("metric", ACCURACY)
        for key in MEASURES:
            values = [summary[key] for summary in group]
            row |= {key: statistics.fmean(values), f"{key}_spread": deviation(values)}
        for key in LINKS:
            values = [summary[key] for summary in group if summary.get(key) is not None]
            known = len(values) == len(group)  # older runs do not have it
            row |= {key: statistics.fmean(values), f"{key}_spread": deviation(values)} if known else {key: None}
        row[WASTED] = statistics.fmean(summary.get(WASTED, 0.0) for summary in group)
        rows.append(row)
    plain = [summary for summary in given if summary["cohorts"] == 1]
    for row in rows:
        own = [summary for summary in given if summary["cohorts"] == row["cohorts"]]
        for ratio, key in (("speed_up", "hours"), ("cpu_saving", "cpu_hours")):
            row[ratio] = _times(plain, own, key)
    return rows


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; of a single value 0."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _times(plain: Sequence[Row], own: Sequence[Row], key: str) -> float | None:
    """How many times less than n = 1: seed by seed, and of these the geometric mean; else of the means."""
    base = {row["seed"]: row[key] for row in plain}
    pairs = [(base[row["seed"]], row[key]) for row in own if row["seed"] in base]
    if plain and not pairs:
        pairs = [tuple(statistics.fmean(row[key] for row in rows) for rows in (plain, own))]  # type: ignore[list-item]
    return typical([one / other for one, other in pairs]) if pairs and all(min(pair) > 0 for pair in pairs) else None


def trade_off(summaries: Iterable[Row], width: int) -> Table:
    """What n costs and what it gains, for a terminal; a narrow one gets the main columns."""
    rows = by_cohorts(summaries)
    several = max(row["seeds"] for row in rows)
    spread_fits = width >= SLIM
    table = Table(title="What n costs and gains", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    columns = [BY_KEY[key] for key in (TERMINAL if width >= WIDE else NARROW)]
    for column in columns:
        table.add_column(column.head.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        spreads = (f"{c.key}_spread" if several > 1 and spread_fits and c.key in NARROW else "" for c in columns)
        table.add_row(*(_text(row, column, spread) for column, spread in zip(columns, spreads, strict=True)))
    table.caption = f"%: {rows[0]['metric']}; hours are virtual"
    if several > 1:
        table.caption += f"; mean {'± sample standard deviation ' if spread_fits else ''}over {several} seeds"
    return table


def cells(rows: Sequence[Row], published: Iterable[Row]) -> dict[str, Any]:
    """The paper's table of teachers and students with the cost of every n, as text; published figures beside."""
    printed = {row["n"]: row for row in published}
    columns = [one for one in COLUMNS if one.key not in (WASTED, BY_LINK) or any(row[one.key] for row in rows)]
    body = []
    for row in rows:
        own = {**row, "gain": row["student_accuracy"] - row["teacher_accuracy_mean"]}
        if row["cohorts"] == 1:  # its model is the result: there is no teacher and no distillation
            own |= dict.fromkeys(("gain", "teacher_accuracy_mean", "teacher_accuracy_std", "ensemble_accuracy"))
        paper, line = printed.get(row["cohorts"], {}), []
        for column in columns:
            text = _text(own, column, column.spread if row["seeds"] > 1 else "")
            line.append({"text": text, "paper": _printed(paper, column.published)})
        body.append(line)
    return {"head": [column.head for column in columns], "rows": body}


def _text(row: Row, column: _Column, spread: str) -> str:
    if row[column.key] is None:
        return "–"
    deviation = f" ± {row[spread]:,.{column.digits}f}" if spread in row else ""
    return f"{row[column.key]:,.{column.digits}f}{deviation}{column.unit}"


def _printed(paper: Row, key: str) -> str:
    if key not in paper:
        return ""
    spread = paper.get(f"{key}_spread")
    return f"{paper[key]:,.4g}" + ("" if spread is None else f" ± {spread:g}")


def overview(folder: Path) -> list[dict[str, Any]]:
    """One row for every run in a folder: what it is and how far it has come."""
    rows = []
    for path in find_runs(folder):
        row = dict.fromkeys(LISTED) | {"path": str(path)}
        try:
            run = read(path)
            row |= {
                "name": run.experiment.name,
                "cohorts": run.n,
                "clients": run.experiment.clients,
                "seed": run.experiment.seed,
                "state": run.state,
                "rounds": sum(history.rounds for history in run.histories),
                "hours": max(history.clock for history in run.histories) / 3600,
                "student_accuracy": run.summary["student_accuracy"] if run.summary else None,
                "metric": run.metric,
            }
        except READ_ERRORS as error:
            row = dict.fromkeys(LISTED) | {"path": str(path), "state": f"damaged: {damage(error)}"}
        rows.append(row)
    return rows


def run_list(rows: Iterable[Row]) -> Table:
    """The overview as a table for a terminal."""
    table = Table()
    for head in ("run", "n", "seed", "state"):
        table.add_column(head, justify="left" if head in ("run", "state") else "right", overflow="fold")
    for head in ("rounds", "hours", "student %"):
        table.add_column(head, justify="right")
    table.add_column("metric")
    texts, formats = ("path", "cohorts", "seed", "state"), {"rounds": ",d", "hours": ".2f", "student_accuracy": ".2f"}
    formats["metric"] = ""
    for row in rows:
        values = ((row[key], formats.get(key, "")) for key in (*texts, *formats))
        table.add_row(*(Text("–" if value is None else printable(format(value, form))) for value, form in values))
    return table
