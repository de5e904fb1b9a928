"""The trade-off explorer in a real Chromium: sliders, sentence, keyboard, telephones, contrast, copies."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from tests.visits import IN_A_BROWSER, Visit, browser, contrast

import cpfl
from cpfl.report.advice import advise_runs
from cpfl.report.verdict import Limits
from cpfl.runs.finding import find_runs

pytestmark = IN_A_BROWSER
__all__ = ["browser"]  # a fixture
SLIDE = """([i, to]) => {
    const input = document.querySelectorAll('.sliders input')[i];
    input.value = to === null ? input.max : to;
    input.dispatchEvent(new Event('input'));
}"""


@pytest.fixture(scope="module")
def reported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over the six runs."""
    return cpfl.report(made, out=tmp_path_factory.mktemp("explored")).page


def test_sliders_rewrite_the_sentence_as_python_would(browser: Any, reported: Path, made: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page = visit.page
        first = page.inner_text("h1")
        said = set()
        for drop in (0, 30, 60, 200):  # tenths of a point; the last one is beyond the end
            page.evaluate(SLIDE, [0, drop])
            limit = int(page.input_value(".sliders input")) / 10
            advice = advise_runs(find_runs(made), Limits(limit))[0]
            assert page.inner_text("h1") == advice.words.headline
            assert page.inner_text(".evidence") == advice.words.evidence
            verdicts = page.locator(".explorer .verdict").all_inner_texts()
            assert verdicts == advice.words.verdicts
            said.add(page.inner_text("h1"))
        assert len(said) >= 2
        page.evaluate(SLIDE, [0, 20])
        assert page.inner_text("h1") == first
        page.evaluate(SLIDE, [1, 0])  # a deadline before anything ends
        assert "comes closest" in page.inner_text("h1")
        assert "past your deadline" in page.inner_text(".explorer tbody")
        assert visit.complaints == []


def test_the_keyboard_reaches_and_moves_everything(browser: Any, reported: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page, reached = visit.page, []
        for _ in range(14):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.type || document.activeElement.getAttribute('role')"))
            if reached.count("range") == 2 and reached[-1] == "range":
                before = page.inner_text("h1"), page.locator(".sliders b").nth(1).inner_text()
                page.keyboard.press("Home")
                assert before[1] == "none"
                assert (page.inner_text("h1"), page.locator(".sliders b").nth(1).inner_text()) != before
        assert reached.count("range") == 4
        assert "region" in reached
        assert reached.count("button") == 5
        assert page.locator(".sliders input").nth(1).get_attribute("aria-valuetext").endswith(" h")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_can_be_seen_at_any_width(browser: Any, reported: Path, width: int, scheme: str) -> None:
    with Visit(browser, reported.as_uri(), width, scheme) as visit:
        page = visit.page
        page.evaluate(SLIDE, [0, 0])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        right = page.eval_on_selector_all(".explorer *", "all => all.map(one => one.getBoundingClientRect().right)")
        assert max(right) <= (width if width < 600 else 1280)
        assert page.locator(".explorer .fails circle").count() > 0
        for selector, key in (
            (".explorer circle", "fill" if page.locator(".explorer tr:not(.fails) circle").count() else "stroke"),
            (".explorer .fails circle", "stroke"),
            (".explorer .limit", "stroke"),
            (".explorer .mean", "stroke"),
            (".explorer .zero", "stroke"),
        ):
            if key == "fill":
                selector = selector.replace("circle", "tr:not(.fails) circle")
            assert contrast(page, selector, key) >= 3, selector
        for selector in (".explorer .fails th", ".explorer .fails .verdict", ".explorer .caption", ".explorer th"):
            assert contrast(page, selector, "color") >= 4.5, selector
        assert contrast(page, ".explorer text", "fill") >= 4.5


def test_what_can_be_copied(browser: Any, reported: Path, summaries: dict[tuple[int, int], dict[str, Any]]) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page, taken = visit.page, {}
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.taken = text }")
        for name in ("Copy command", "Copy sentence", "Markdown", "LaTeX", "CSV"):
            page.get_by_role("button", name=name, exact=True).click()
            page.wait_for_function("window.taken")
            taken[name] = page.evaluate("window.taken")
            page.evaluate("window.taken = ''")
        assert taken["Copy command"].startswith("cpfl run ")
        assert taken["Copy sentence"].startswith(page.inner_text("h1"))
        assert taken["Markdown"].count("\n") == 4
        assert taken["LaTeX"].count("\\\\") == 4
        rows = list(csv.DictReader(io.StringIO(taken["CSV"])))
        assert len(rows) == len(summaries)
        for row in rows:
            summary = summaries[int(row["n"]), int(row["seed"])]
            assert float(row["accuracy"]) == summary["student_accuracy"]
            assert float(row["hours"]) == summary["hours"]
