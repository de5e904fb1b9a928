"""The table of a sweep fits its terminal: a narrow one gets fewer columns and no deviations, but whole numbers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from cpfl.reports import tables


@pytest.mark.parametrize("width", [60, 75, 76, 80, 100, 160])
def test_no_number_is_cut_off(width: int, summaries: dict[tuple[int, int], dict[str, Any]]) -> None:
    screen = io.StringIO()
    Console(file=screen, width=width).print(tables.trade_off(summaries.values(), width))
    lines = screen.getvalue().splitlines()
    assert "…" not in screen.getvalue()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.strip()[:1].isdigit()] == ["1", "2", "4"]
    assert ("±" in screen.getvalue()) == (width >= tables.SLIM)
    assert "hours are virtual" in " ".join(screen.getvalue().split())
