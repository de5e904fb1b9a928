"""The dashboard in a real Chromium while a real run trains in another process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hold import Hold
from tests.visits import IN_A_BROWSER, Visit, browser, right_edges

pytestmark = IN_A_BROWSER
__all__ = ["browser"]  # a fixture
Start = Callable[..., Any]
POINTS = """() => [...document.querySelectorAll('[data-figure=live-curves] .mark-line path')]
    .map(path => path.getAttribute('d').length).reduce((a, b) => a + b, 0)"""
STOPS = "() => document.querySelectorAll('[data-figure=live-curves] .mark-symbol path').length"


def test_a_run_from_its_beginning_to_its_end(browser: Any, patient: Start, training: Start, tmp_path: Path) -> None:
    """From an empty folder: a run appears, its curves grow, cohorts stop, the outcome comes; no page is reloaded."""
    (tmp_path / "runs").mkdir()
    served = patient("runs")
    with Visit(browser, served.address) as visit:
        page = visit.page
        assert "There are no runs in this folder yet" in page.inner_text("h1")
        hold = Hold(tmp_path, 10)
        settings = {"cohorts": 4, "max_rounds": 60, "stopping.patience": 10, "stopping.window": 3}
        settings |= {"distillation.epochs": 5}
        training(tmp_path / "runs" / "live", **hold.settings(settings))
        page.wait_for_selector("[data-figure=live-curves] .mark-line path")
        assert "One run, in progress." in page.inner_text("h1")
        before = page.evaluate(POINTS)
        hold.allow(20)
        page.wait_for_function(f"({POINTS})() > {before + 200}")
        hold.allow(50)  # one of the cohorts stops before
        page.wait_for_function(f"({STOPS})() >= 1")
        visit.shot("a-stop")
        assert "plateau" in page.inner_text(".stops li")
        speed = page.inner_text("td[data-label='samples/s']")
        assert float(speed.replace(",", "")) > 1
        hold.end()
        page.wait_for_function("document.querySelector('h1').textContent.includes('finished')")
        page.wait_for_selector("[data-figure=trade-off] svg")
        visit.shot("the-end")
        summary = json.loads((tmp_path / "runs" / "live" / "summary.json").read_text())
        assert f"{summary['student_accuracy']:.1f}" in page.inner_text("table")
        assert visit.complaints == []
        assert {address.removeprefix(served.address) for address in visit.asked} <= {"", "fresh.json", "data:,"}


COLOURS_SEEN = """() => {
    window.seen = {};
    const look = () => document.querySelectorAll('.tile').forEach(tile => {
        const dot = tile.querySelector('.dot');
        if (dot) (window.seen[tile.title] ||= new Set()).add(dot.style.background);
    });
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
    look();
}"""


def test_a_sweep_from_its_queue_to_its_end(browser: Any, patient: Start, training: Start, tmp_path: Path) -> None:
    """One run is done, one is held, one waits; then all are done, and the report appears. No page is reloaded."""
    (tmp_path / "runs").mkdir()
    served = patient("runs")
    with Visit(browser, served.address) as visit:
        page = visit.page
        page.evaluate(COLOURS_SEEN)
        assert page.title() == "cpfl dashboard"
        hold = Hold(tmp_path, 3, first=1)  # n = 1 ends
        settings = {"max_rounds": 12, "stopping.patience": 10, "distillation.epochs": 2}
        training(tmp_path / "runs" / "s", "1,2,4", **hold.settings(settings))
        for state in ("done", "running", "queued"):
            page.wait_for_function(f"document.querySelectorAll('.tile.{state}').length === 1")
        page.wait_for_selector(".chips li")
        page.wait_for_function("/^1\\/3 runs · \\d+ % · cpfl$/.test(document.title)")
        share = int(page.title().split(" · ")[1].removesuffix(" %"))
        assert 33 <= share < 100  # a run is done, and a part of the second
        assert page.locator("#advice").count() == 0  # there is nothing to compare yet
        assert "3 runs: 1 in progress, 1 queued, 1 finished." in page.inner_text("h1")
        heads = page.locator(".active thead th").all_inner_texts()
        assert {"virtual hours", "virtual CPU hours", "real time", "real time left"} <= set(heads)
        visit.shot("a-sweep")
        hold.end()
        page.wait_for_function("document.title === '3/3 runs · 100 % · cpfl'")
        page.wait_for_selector("#advice")
        page.wait_for_selector("[data-figure=trade-off] svg")
        assert page.locator(".tile").count() == 0
        seen = page.evaluate("() => Object.values(window.seen).map(colours => colours.size)")
        assert len(seen) >= 2
        assert set(seen) == {1}, "a run keeps its colour while others begin and end"
        assert visit.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_legible_at_any_width_in_both_schemes(browser: Any, dashboard_of_three: Any, width: int, scheme: str) -> None:
    with Visit(browser, dashboard_of_three.address, width, scheme) as visit:
        page = visit.page
        visit.shot(f"several-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for shown in (
            "[data-figure] svg",
            ".active td, .active tbody th",
            ".tile",
            ".facts dd",
            ".chips li",
        ):  # without scrolling
            assert 0 < max(right_edges(page, shown)) <= width, shown
        for selector in (
            ".active td",
            ".tile",
            ".facts dt",
            ".chips li",
            "h1",
            ".kind",
            ".ago" if page.locator(".ago").count() else "h2",
        ):
            ink, paper = page.evaluate(COLOURS, selector)
            lighter, darker = sorted((_luminance(ink), _luminance(paper)), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector
        assert visit.complaints == []


COLOURS = """name => [getComputedStyle(document.querySelector(name)).color,
    getComputedStyle(document.body).backgroundColor]"""


def test_runs_side_by_side(browser: Any, dashboard_of_three: Any) -> None:
    with Visit(browser, dashboard_of_three.address) as visit:
        page = visit.page
        page.wait_for_selector("[data-figure=live-runs] svg")
        assert page.locator("[data-figure=live-runs] .mark-line path").count() == 3
        assert page.locator(".active tbody tr").count() == 2
        options = page.locator("[data-figure=live-curves] select option").all_inner_texts()
        assert sorted(options) == ["later", "open"]
        assert visit.complaints == []


def test_by_keyboard_alone(browser: Any, dashboard_of_three: Any) -> None:
    """Tab reaches every link, menu, region and fold, and whoever is there is seen to be."""
    with Visit(browser, dashboard_of_three.address) as visit:
        page = visit.page
        wanted = page.evaluate(
            """() => [...document.querySelectorAll('a[href], select, summary, [tabindex="0"]')]
                .map((control, i) => (control.dataset.number = i, i))"""
        )
        reached = set()
        for _ in range(len(wanted) + 5):
            page.keyboard.press("Tab")
            number, outline = page.evaluate(
                "[document.activeElement.dataset.number, getComputedStyle(document.activeElement).outlineStyle]"
            )
            if number is not None:
                reached.add(int(number))
                assert outline != "none", "the focus is visible"
        assert reached == set(wanted)


def test_a_menu_survives_what_is_new(browser: Any, dashboard: Start, several: Path) -> None:
    """Rows that come in neither close a menu, nor take the focus away, nor change what was chosen."""
    with Visit(browser, dashboard("runs").address) as visit:
        page = visit.page
        menu = "[data-figure=live-curves] select"
        page.select_option(menu, "open")
        page.focus(menu)
        page.evaluate(f"document.querySelector('{menu}').dataset.seen = 'yes'")
        before = page.evaluate(POINTS)
        for path in sorted((several / "open" / "rounds").iterdir()):
            lines = path.read_text().splitlines()
            last = json.loads(lines[-1])
            if last["stop"]:
                continue
            with path.open("a") as file:
                for i in range(1, 60):
                    more = {"round": last["round"] + i, "clock": last["clock"] + i * last["seconds"]}
                    file.write(json.dumps(last | more | {"moving_average": 1 + 1 / i}) + "\n")
        page.wait_for_function(f"({POINTS})() > {before}")
        assert page.locator(f"{menu}[data-seen=yes]").count() == 1
        assert page.evaluate(f"document.activeElement === document.querySelector('{menu}')")
        assert page.input_value(menu) == "open"
        assert visit.complaints == []


def test_a_dashboard_that_has_ended_is_announced(browser: Any, dashboard: Start, several: Path) -> None:
    served = dashboard("runs")
    with Visit(browser, served.address) as visit:
        page = visit.page
        assert page.locator("#offline:visible").count() == 0
        assert served.stop() == 0
        page.wait_for_selector("#offline:visible")
        assert "The dashboard does not answer" in page.inner_text("#offline")


def test_names_cannot_act(browser: Any, dashboard: Start, several: Path) -> None:
    (several / "open").rename(several / "<img src=x onerror=alert(1)>")
    with Visit(browser, dashboard("runs").address) as visit:
        assert "<img src=x onerror=alert(1)>" in visit.page.inner_text(".active")
        assert visit.page.locator("img").count() == 0
        assert visit.complaints == []


def _luminance(colour: str) -> float:
    """Of a CSS rgb(), after the web's accessibility guidelines."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
