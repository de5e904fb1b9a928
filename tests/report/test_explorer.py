"""The trade-off explorer in a real Chromium: sliders, sentence, keyboard, telephones, contrast, copies."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.visits import IN_A_BROWSER, Visit, browser, contrast, luminance

import cpfl
from cpfl.reports.advice import advise_runs
from cpfl.reports.verdict import Limits
from cpfl.runs.finding import find_runs

pytestmark = IN_A_BROWSER
__all__ = ["browser"]  # a fixture
# Of every mark in a figure: the colour of its line, else of its area, over what lies behind it.
COLOURS = """() => {
    const found = new Map();
    const parts = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
    for (const figure of document.querySelectorAll('[data-figure]')) {
        const behind = getComputedStyle(figure.closest('figure')).backgroundColor;
        for (const one of figure.querySelectorAll('.role-mark :is(path, line, text)')) {
            const style = getComputedStyle(one), box = one.getBoundingClientRect();
            const keys = one.tagName === 'text' ? ['fill'] : ['stroke', 'fill'];
            const key = keys.find(key => style[key].startsWith('rgb('));  // neither none nor transparent
            const opaque = Number(style.opacity) * Number(style[`${key}Opacity`]);
            if (!key || !opaque || !(box.width + box.height)) continue;
            const under = parts(behind);
            const seen = parts(style[key]).map((part, i) => Math.round(opaque * part + (1 - opaque) * under[i]));
            const row = [figure.dataset.figure, one.tagName, `rgb(${seen})`, behind];
            found.set(row.join(), row);
        }
    }
    return [...found.values()];
}"""
TICKS = """[...document.querySelectorAll('[data-figure=validation-loss] .role-axis-label text')]
    .map(one => one.textContent).sort().join()"""  # Vega draws a tick that it keeps before new ones
SLIDE = """([i, to]) => {
    const input = document.querySelectorAll('.sliders input')[i];
    input.value = to === null ? input.max : to;
    input.dispatchEvent(new Event('input'));
}"""


@pytest.fixture(scope="module")
def reported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over the six runs."""
    return cpfl.report(made, out=tmp_path_factory.mktemp("explored")).page


@pytest.fixture(scope="module")
def reported_again(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same over runs that were distilled again."""
    runs = Path(shutil.copytree(made, tmp_path_factory.mktemp("again") / "runs"))
    cpfl.redistill(find_runs(runs))
    return cpfl.report(runs).page


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


def test_the_deadline_is_dragged_in_the_figure(browser: Any, reported_again: Path) -> None:
    with Visit(browser, reported_again.as_uri()) as visit:
        page = visit.page
        rule = "[data-figure=time-budget] .role-mark.mark-rule line"
        before = page.locator(rule).count()
        plot = page.locator("[data-figure=time-budget] svg")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.wait_for_function(f"document.querySelectorAll('{rule}').length > {before}")
        first = page.locator(".sliders b").nth(1).inner_text()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.up()
        second = page.locator(".sliders b").nth(1).inner_text()
        assert first.endswith(" h")
        assert second == "none" or float(second.split()[0]) > float(first.split()[0])
        page.evaluate(SLIDE, [1, None])
        page.wait_for_function(f"document.querySelectorAll('{rule}').length === {before}")
        assert visit.complaints == []


def test_two_candidates_side_by_side(
    browser: Any, reported: Path, summaries: dict[tuple[int, int], dict[str, Any]]
) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page = visit.page
        page.locator("details.compare summary").click()
        page.select_option(".pair label:nth-child(1) select", label="n = 2")
        page.select_option(".pair label:nth-child(2) select", label="n = 4")
        tables = page.locator("[data-compare] table")
        assert tables.first.inner_text().split() == ["setting", "n", "=", "2", "n", "=", "4", "cohorts", "2", "4"]
        apart = [summaries[4, seed]["hours"] - summaries[2, seed]["hours"] for seed in (90, 91)]
        cells = page.locator("[data-compare] tr", has_text="CPU hours").first.locator(
            "xpath=preceding-sibling::tr[1]/td"
        )
        for text, more in zip(cells.all_inner_texts(), apart, strict=False):
            assert float(text.replace("−", "-")) == pytest.approx(more, abs=0.0051)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_of_figures_have_contrast(browser: Any, reported_again: Path, scheme: str) -> None:
    with Visit(browser, reported_again.as_uri(), 1280, scheme) as visit:
        page = visit.page
        names = page.eval_on_selector_all("[data-figure]", "all => all.map(one => one.dataset.figure)")
        assert len(names) == 15
        seen = set()
        for name, kind, colour, behind in page.evaluate(COLOURS):
            seen.add(name)
            lighter, darker = sorted((luminance(colour), luminance(behind)), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= (4.5 if kind == "text" else 3), (name, kind, colour)
        assert seen == set(names)


def test_curves_are_zoomed_and_compared(browser: Any, reported: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page = visit.page
        before = page.evaluate(TICKS)
        for name in ("Zoom in", "Later"):  # by keyboard
            last = page.evaluate(TICKS)
            page.get_by_role("button", name=name).focus()
            page.keyboard.press("Enter")
            page.wait_for_function(f"last => {TICKS} !== last", arg=last)
        page.get_by_role("button", name="Whole figure").focus()
        page.keyboard.press("Enter")
        page.wait_for_function(f"before => {TICKS} === before", arg=before)
        plot = page.locator("[data-figure=validation-loss] svg")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.6 * box["height"])
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.6 * box["height"])
        page.wait_for_selector("#vg-tooltip-element.visible")
        said = page.locator("#vg-tooltip-element tr").all()
        told = {row.locator("td").first.inner_text(): row.locator("td").last.inner_text() for row in said}
        assert 1 <= int(told["cohorts that train"]) <= 4
        assert float(told["lowest loss"]) <= float(told["median loss"]) <= float(told["highest loss"])
        assert visit.complaints == []


def test_the_quorum_is_dragged_and_the_title_follows(browser: Any, reported: Path) -> None:
    with Visit(browser, reported.as_uri()) as visit:
        page = visit.page
        titles = set()
        for n, seed in (("4", "90"), ("2", "91")):
            page.select_option("#pick label:nth-child(1) select", n)
            page.select_option("#pick label:nth-child(2) select", seed)
            page.wait_for_function(
                """([n, seed]) => document.querySelector('#timeline h3').textContent.includes(`n = ${n}, seed ${seed};`)
                    && document.querySelector('#method h3').textContent.includes(`n = ${n}:`)""",
                arg=[n, seed],
            )
            titles.add(page.inner_text("#timeline h3"))
        assert len(titles) == 2
        plot = page.locator("[data-figure=timeline] svg")
        plot.scroll_into_view_if_needed()
        bars = page.locator("[data-figure=timeline] .role-mark.mark-rect path")
        first, every = bars.first.bounding_box(), [bars.nth(i).bounding_box() for i in range(bars.count())]
        end = max(box["x"] + box["width"] for box in every if abs(box["y"] - first["y"]) < 2)
        rule = page.locator("[data-figure=timeline] .role-mark.mark-rule line")
        page.mouse.move(end + 1, first["y"])
        page.mouse.down()
        page.wait_for_function(
            "document.querySelector('[data-figure=timeline] input[type=range]').value === '50'"  # one of two cohorts
        )
        page.mouse.up()
        assert rule.bounding_box()["x"] == pytest.approx(end, abs=8)  # a bar's box holds the corners of its outline
        assert visit.complaints == []
