"""The page in a real Chromium, offline: no error, every figure drawn, legible at any width and in both schemes."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from small_runs import reseal
from tests.visits import IN_A_BROWSER, Visit, browser, luminance

import cpfl
from cpfl.reports import writing as pages
from cpfl.reports.content import content
from cpfl.runs.finding import find_runs

pytestmark = IN_A_BROWSER
__all__ = ["browser"]  # a fixture


@pytest.fixture(scope="module")
def reported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over runs that were distilled again, with every figure."""
    runs = Path(shutil.copytree(made, tmp_path_factory.mktemp("browsed") / "runs"))
    cpfl.redistill(find_runs(runs))
    return cpfl.report(runs).page


MARKS = """element => ['.mark-line path', '.mark-symbol path', '.mark-rect path', '.mark-rule line']
    .flatMap(mark => [...element.querySelectorAll(`svg ${mark}`)])
    .filter(mark => mark.getBoundingClientRect().width + mark.getBoundingClientRect().height > 0).length"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_offline_and_draws_everything(browser: Any, reported: Path, width: int, scheme: str) -> None:
    with Visit(browser, reported.as_uri(), width, scheme) as visit:
        page = visit.page
        elements = page.query_selector_all("[data-figure]")
        assert len(elements) == 15
        for element in elements:
            assert element.evaluate(MARKS) >= 2, element.get_attribute("data-figure")
            drawing, figure = element.query_selector("svg").bounding_box(), element.bounding_box()
            assert drawing["width"] > 0.8 * figure["width"]
            assert drawing["x"] + drawing["width"] <= width, "nothing is cut off at the right"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.complaints == []
        assert [address for address in visit.asked if not address.startswith(("file:", "data:"))] == []
        ink, paper = (page.evaluate(f"getComputedStyle(document.body).{key}") for key in ("color", "backgroundColor"))
        assert (luminance(ink) < luminance(paper)) == (scheme == "light")
        labels = page.query_selector("svg .role-axis-label text").evaluate("text => getComputedStyle(text).fill")
        lighter, darker = sorted((luminance(labels), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, "axis labels can be read"


def test_by_keyboard_alone(browser: Any, reported: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page, reached = visit.page, set()
        for _ in range(160):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 160)"))
        controls = " ".join(reached)
        assert "Skip to the report" in controls
        assert "<select" in controls
        assert 'type="range"' in controls
        assert 'role="region"' in controls
        assert "figures/trade-off.pdf" in controls
        assert "<summary" in controls
        labels = "document.querySelectorAll('[data-figure=timeline] .mark-text.role-mark text')"
        for n, seed in (("2", "90"), ("4", "91")):  # one selector for all figures
            page.select_option("#pick label:nth-child(1) select", n)
            page.select_option("#pick label:nth-child(2) select", seed)
            page.wait_for_function(f"{labels}.length == {n}")
        page.locator("[data-figure=timeline] input[type=range]").focus()
        before = page.locator("[data-figure=timeline] .mark-rule line").last.get_attribute("transform")
        page.keyboard.press("Home")
        page.wait_for_function(
            """before => [...document.querySelectorAll('[data-figure=timeline] .role-mark.mark-rule line')]
                .some(line => line.getAttribute('transform') !== before)""",
            arg=before,
        )
        assert visit.complaints == []


def test_headings_and_landmarks(browser: Any, reported: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        count = visit.page.locator
        assert count("h1").count() == 1
        assert count("main").count() == 1
        assert count("nav a").count() >= 4
        for link in visit.page.query_selector_all("nav a"):
            assert count(link.get_attribute("href")).count() == 1
        assert count("figure figcaption").count() == count("figure").count() == 15
        assert count("[data-figure][aria-roledescription=visualization][aria-label]").count() == 15


def test_names_cannot_act_in_a_browser(browser: Any, made: Path, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(made, tmp_path / "<img src=x onerror=alert(1)>"))
    path = runs / "n1-seed90" / "experiment.toml"
    evil = "</script><script>alert(2)</script>"
    path.write_text(path.read_text().replace('train = "digits-grainy"', f'train = "{evil}"'))
    reseal(path.parent)
    written = cpfl.report(runs)
    assert len(written.content["groups"]) == 2
    with Visit(browser, written.page.as_uri()) as visit:
        assert visit.complaints == []
        assert "<script>alert(2)" in visit.page.inner_text("main")


def test_an_unfinished_run(browser: Any, unfinished: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(unfinished, runs / "open")
    with Visit(browser, cpfl.report(runs).page.as_uri()) as visit:
        elements = visit.page.query_selector_all("[data-figure]")
        assert {element.get_attribute("data-figure") for element in elements} >= {"validation-loss", "timeline"}
        for element in elements:
            assert element.evaluate(MARKS) >= 2
        assert visit.complaints == []


def test_two_hundred_cohorts(browser: Any, made: Path, tmp_path: Path) -> None:
    """A run with 200 cohorts, from a small real one: still drawn, quickly, in a page that is not large."""
    runs = tmp_path / "runs"
    shutil.copytree(made / "n1-seed90", runs / "n1-seed90")
    many = runs / "n200-seed90"
    shutil.copytree(made / "n4-seed90", many, ignore=shutil.ignore_patterns("snapshots", "checkpoints"))
    path = many / "experiment.toml"
    path.write_text(path.read_text().replace("cohorts = 4", "cohorts = 200").replace("clients = 8", "clients = 400"))
    path = runs / "n1-seed90" / "experiment.toml"
    path.write_text(path.read_text().replace("clients = 8", "clients = 400"))
    about, summary = (json.loads((many / name).read_text()) for name in ("run.json", "summary.json"))
    for key in ("cohorts", "label_counts"):
        about[key] = [about[key][i % 4] for i in range(200)]
    summary |= {"cohorts": 200, "by_cohort": [summary["by_cohort"][i % 4] | {"cohort": i} for i in range(200)]}
    (many / "run.json").write_text(json.dumps(about))
    (many / "summary.json").write_text(json.dumps(summary))
    for run in (many, runs / "n1-seed90"):
        reseal(run)
    for i in range(4, 200):
        shutil.copy(many / "rounds" / f"cohort-{i % 4:04d}.jsonl", many / "rounds" / f"cohort-{i:04d}.jsonl")
    written = cpfl.report(runs)
    assert written.page.stat().st_size < 5e6
    with Visit(browser, written.page.as_uri(), 390) as visit:
        assert visit.complaints == []
        lines = visit.page.query_selector("[data-figure=validation-loss]").evaluate(MARKS)
        bars = visit.page.query_selector("[data-figure=timeline]").evaluate(MARKS)
        assert lines >= 200
        assert bars >= 400
        meter = visit.context.new_cdp_session(visit.page)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})  # not while another has the core
        visit.page.reload()
        visit.page.wait_for_selector("html[data-ready=yes]")
        took = {one["name"]: one["value"] for one in meter.send("Performance.getMetrics")["metrics"]}
        assert 0 < took["TaskDuration"] < 10  # about a second


def test_a_page_that_is_kept_fresh(browser: Any, runs: Path) -> None:
    """The page polls: what is new appears, and the choice in a menu stays."""
    hidden = runs.parent / "hidden"
    shutil.move(runs / "n4-seed91", hidden)
    tree = content(find_runs(runs))
    answers = {"/": pages.render(tree, refresh="/fresh.json"), "/fresh.json": json.dumps(pages.fresh(tree))}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if "json" in self.path else "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(answers[self.path].encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with Visit(browser, f"http://127.0.0.1:{server.server_port}/") as visit:
            page = visit.page
            assert "5 runs" in page.inner_text("main")
            page.select_option("#pick select", "1")
            page.evaluate("document.querySelector('h1').parentElement.dataset.seen = 'yes'")
            shutil.move(hidden, runs / "n4-seed91")
            later = content(find_runs(runs))
            answers["/fresh.json"] = json.dumps(pages.fresh(later))
            page.wait_for_function("document.querySelector('.runs').rows.length == 7")
            assert page.input_value("#pick select") == "1"
            assert page.locator("[data-seen=yes]").count() == 1, "what had not changed was not replaced"
            drawn = page.query_selector("[data-figure=samples]").evaluate(MARKS)
            assert drawn >= 2 * 2 + 2 * 4
            assert visit.complaints == []
        server.shutdown()
        thread.join()
