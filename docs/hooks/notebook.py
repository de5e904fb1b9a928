"""A tutorial as a notebook: `python docs/hooks/notebook.py` writes tutorials/own-data.ipynb from own-data.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "tutorials" / "own-data.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CODE = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")  # a notebook is opened anywhere: links within the pages go


def notebook(text: str) -> dict[str, Any]:
    """The text of a page as cells: Python as code, all else as Markdown."""
    cells = []
    for number, part in enumerate(CODE.split(text)):
        if not part.strip():
            continue
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if number % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell |= {"cell_type": "markdown"}
            part = LINK.sub(r"\1", part)
        cells.append(cell | {"source": part.strip().splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def as_text() -> str:
    """The notebook as its file has it."""
    return json.dumps(notebook(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(as_text(), encoding="utf-8")
