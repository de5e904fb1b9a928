"""The notebook of the documentation, executed as Jupyter does, and the examples that need pandas."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
from tests.pages import ROOT, blocks, find
from tests.processes import PYTHON, Program

MODULE = runpy.run_path(str(ROOT / "docs" / "hooks" / "notebook.py"))


def test_the_notebook_is_that_of_the_page() -> None:
    """`python docs/hooks/notebook.py` writes it."""
    assert MODULE["NOTEBOOK"].read_text() == MODULE["as_text"]()


@pytest.mark.filterwarnings("ignore")  # those of Jupyter
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="no Jupyter kernel is installed")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(MODULE["NOTEBOOK"], as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(out.get("text", "") for out in cell.get("outputs", ())) for cell in notebook.cells]
    assert float(printed[-2].split()[0]) > 75, printed  # the last cell of code uses the model
    assert (tmp_path / "runs" / "machines" / "summary.json").is_file()


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_with_pandas(number: int, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    noted = [
        block["text"] for block in blocks(find("notebooks.md")) if "test_own_data_notebook.py" in (block["note"] or "")
    ]
    process = Program([noted[number]], tmp_path, os.environ, PYTHON)
    assert process.wait() == 0, process.err
    assert "cpu_" in process.out
