"""Workers, their cohorts and their load: in the terminal and on the dashboard."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, at_work, settings, start
from tests.dashboard.conftest import Served, dashboard
from tests.visits import IN_A_BROWSER, Visit, browser, right_edges

from cpfl import method
from cpfl.dashboard.live import worker_pool
from cpfl.data.given import Given
from cpfl.settings import experiment_file
from cpfl.task.task import build_task
from cpfl.terminal import RunView
from cpfl.terminal.views import first_cohorts, worker_lines

__all__ = ["browser", "dashboard"]  # fixtures
ROW = {"worker": "worker 0", "node": "n1", "pid": 1, "device": "cpu", "cohorts": [3, 1], "load": 0.97}
LOAD = {"workers": [{**ROW, "samples_per_second": 1234.5}], "moved": 0, "dashboard": "http://127.0.0.1:8265"}


def test_a_worker_has_a_line() -> None:
    assert worker_lines({}) == []
    head, line = worker_lines(LOAD)
    assert head.split() == ["worker", "load", "samples/s", "cohorts"]
    assert line.split() == ["worker", "0", "97", "%", "1,234", "3,", "1"]
    many = [{**LOAD["workers"][0], "samples_per_second": float(k)} for k in range(100)]
    assert worker_lines({"workers": many})[-1] == "and 94 more; 100 of 100 workers have cohorts"
    assert first_cohorts(range(20)) == "0, 1, 2, 3, 4, 5, 6, 7 and 12 more"


def test_the_live_view_shows_them() -> None:
    experiment = experiment_file.load("digits")
    screen = io.StringIO()
    view = RunView(Console(file=screen, width=100, height=40), experiment, 2)
    view.on_start(method.open_sessions(build_task(experiment, [], Given())))
    view.on_workers(LOAD)
    view._console.print(view._draw())
    assert "worker 0      97 %" in screen.getvalue()


def test_the_dashboard_reads_what_is_fresh_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    assert worker_pool("run", tmp_path, 0.0) is None
    path.write_text(json.dumps(LOAD))
    written = path.stat().st_mtime
    found = worker_pool("run", tmp_path, written)
    assert found is not None
    assert found["dashboard"] == "http://127.0.0.1:8265"
    assert found["workers"][0] == {
        "worker": "worker 0", "node": "n1", "device": "cpu", "load": "97 %", "speed": "1,234", "cohorts": "3, 1",
    }  # fmt: skip
    assert worker_pool("run", tmp_path, written + 3600) is None
    path.write_text(json.dumps({**LOAD, "dashboard": "javascript:alert(1)"}))
    found = worker_pool("run", tmp_path, path.stat().st_mtime)
    assert found is not None
    assert found["dashboard"] == ""
    path.write_text('{"workers": [{')
    assert worker_pool("run", tmp_path, path.stat().st_mtime) is None


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    for mark in (pytest.mark.cluster, *IN_A_BROWSER):
        test = mark(test)
    return test


@in_a_browser
def test_the_dashboard_shows_the_workers_of_a_live_run(
    cluster: Nodes, browser: Any, dashboard: Callable[..., Served], tmp_path: Path
) -> None:
    """Every fact of a worker can be seen at any width, and is fresh without a reload."""
    out = tmp_path / "runs" / "live"
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    long = {**SMALL, "max_rounds": 10**6, "stopping.rule": "rounds", "stopping.rounds": 10**6}
    long["federation.selection"] = "tests.cluster.gate:Paced"
    process = start("run", "digits", *settings(long), *options, "--out", out)
    at_work(process, out, 2)
    served = dashboard("runs")
    for width, scheme in ((1280, "light"), (390, "dark")):
        with Visit(browser, served.address, width, scheme) as visit:
            page = visit.page
            page.wait_for_selector(".pool tbody tr")
            visit.shot(f"workers-{width}-{scheme}")
            names = page.locator(".pool tbody th").all_inner_texts()
            assert names == ["worker 0", "worker 1"]
            shown = page.locator(".pool td[data-label=cohorts]").all_inner_texts()
            assert sorted(int(k) for cell in shown for k in cell.removeprefix("cohorts").split(",")) == [0, 1, 2, 3]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert 0 < max(right_edges(page, ".pool td, .pool tbody th")) <= width
            speeds = "[...document.querySelectorAll('.pool td[data-label=\"samples/s\"]')].map(c => c.innerText)"
            page.wait_for_function(
                f"before => String({speeds}) !== before", arg=str(page.evaluate(f"String({speeds})"))
            )
            assert visit.complaints == []
