"""In a notebook: progress while a run trains, and a run as the result of a cell. A real kernel executes the cells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient, which executes notebooks, is not installed")
pytest.importorskip("ipykernel", reason="ipykernel, in which notebooks run, is not installed")

RUN = """
import cpfl
run = cpfl.run("digits", cohorts=2, clients=4, max_rounds=3, distillation={"epochs": 2}, out="run")
"""


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_a_run_in_a_notebook(tmp_path: Path) -> None:
    import nbformat
    from nbformat import v4

    again = "cpfl.distill(run, name='later', verbose=False)"
    cells = [v4.new_code_cell(code) for code in (RUN, "run", "run.plot()", again)]
    book = nbformat.from_dict(v4.new_notebook(cells=cells))
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=None, resources=where).execute(env=dict(os.environ))
    progress, shown, picture, silent = (cell["outputs"] for cell in book["cells"])
    pages = [one["data"]["text/html"] for one in progress if one["output_type"] == "display_data"]
    assert sum("<pre" in page and "distill" in page and "epoch 2 of 2" in page for page in pages) == 1
    assert not any("cohort 0 stopped" in page for page in pages)  # plain lines are for those who have no view
    (result,) = shown
    assert "on the test set" in result["data"]["text/html"]
    assert "<svg" in result["data"]["text/html"]
    assert picture[0]["data"]["image/svg+xml"].startswith("<svg")
    assert [one["output_type"] for one in silent] == ["execute_result"]
