"""A page as a reader opens it, in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
    # Chromium's child processes may outlive the driver's pipes by a moment.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the tests of one file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=0)
        yield chromium
        chromium.close()


class Visit:
    """An open page, with its errors and warnings in `complaints` and the addresses that it requested in `asked`."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=address.startswith("file:"),
            reduced_motion="reduce",
        )
        self.context.set_default_timeout(0)  # none: pytest's own ends a page that hangs
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready=yes]")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def shot(self, name: str) -> None:
        """Save a screenshot where CPFL_SCREENSHOTS names a folder."""
        if folder := os.environ.get("CPFL_SCREENSHOTS"):
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def right_edges(page: Any, selector: str) -> list[float]:
    """Where elements end, all at one moment: a live page replaces them."""
    edges: list[float] = page.eval_on_selector_all(selector, "all => all.map(one => one.getBoundingClientRect().right)")
    return edges


def contrast(page: Any, selector: str, key: str) -> float:
    """Of the first such element's colour against what lies behind it, after the web's accessibility guidelines."""
    colours = page.eval_on_selector(
        selector,
        """(one, key) => {
            let behind = one.parentElement;
            while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
            return [getComputedStyle(one)[key], getComputedStyle(behind).backgroundColor];
        }""",
        key,
    )
    lighter, darker = sorted((luminance(colour) for colour in colours), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Of a CSS rgb(), after the same guidelines."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
