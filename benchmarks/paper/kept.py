"""Small tables of results that several commands add to: a row a line, and rows of other runs stay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def add(out: Path, rows: Sequence[Row], key: Sequence[str]) -> int:
    """Put these rows in the place of those with the same key, or behind them; how many there are then."""
    found = {_key(row, key): row for row in (json.loads(out.read_text()) if out.exists() else [])}
    found |= {_key(row, key): row for row in rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n ".join(map(json.dumps, found.values()))
    out.write_text(f"[{lines}]\n")
    return len(found)


def once(rows: Iterable[Row]) -> list[Row]:
    """Of runs with the same n, α and seed the last one."""
    return list({_key(row, ("n", "alpha", "seed")): row for row in rows}.values())


def name_of(run: Path) -> str:
    """A run's name in such a table."""
    return f"{run.parent.name}/{run.name}"


def _key(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(part) for part in key)
