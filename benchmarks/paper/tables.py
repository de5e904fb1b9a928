"""Tables of results that several commands add to: one row per line, rows of other runs stay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def add(out: Path, rows: Sequence[Row], key: Sequence[str]) -> int:
    """Replace rows that have the same key, append the others; the number of rows afterwards."""
    found = {_key(row, key): row for row in (json.loads(out.read_text()) if out.exists() else [])}
    found |= {_key(row, key): row for row in rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n ".join(map(json.dumps, found.values()))
    out.write_text(f"[{lines}]\n")
    return len(found)


def once(rows: Iterable[Row]) -> list[Row]:
    """The last of the runs with the same n, α and seed."""
    return list({_key(row, ("n", "alpha", "seed")): row for row in rows}.values())


def name_of(run: Path) -> str:
    """A run's name in such a table."""
    return f"{run.parent.name}/{run.name}"


def _key(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(part) for part in key)
