"""The built site in a real Chromium: it loads nothing from elsewhere, draws its diagrams and fits a phone."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.pages import PAGES, ROOT
from tests.visits import IN_A_BROWSER, browser

SITE = ROOT / "site"
pytestmark = [*IN_A_BROWSER, pytest.mark.skipif(not SITE.is_dir(), reason="make docs has not built the site")]
__all__ = ["browser"]  # a fixture
DRAWN = [page for page in PAGES if page.name != "README.md" and "```mermaid" in page.read_text()]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: tests print only failures."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_no_page_names_a_script_or_style_of_another_host() -> None:
    tag = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//", re.I)
    found = {str(page.relative_to(SITE)) for page in SITE.rglob("*.html") if tag.search(page.read_text())}
    assert len(list(SITE.rglob("*.html"))) > 40
    assert found == set()


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_load_nothing_from_elsewhere_and_fit(browser: Any, address: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(0)
    page = context.new_page()
    asked, complaints = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    drawn = [str(one.relative_to(ROOT / "docs").with_suffix("")).removesuffix("index") for one in DRAWN]
    for path in {*drawn, "reference/commands", "reference/python", "reference/settings", "results/measured-paper"}:
        page.goto(f"{address}{path}/".replace("//", "/").replace(":/", "://"))
        if path in drawn:  # each diagram is drawn into a box of its own, in place of its text
            page.wait_for_function("[...document.querySelectorAll('div.mermaid')].some(one => one.offsetHeight > 100)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []
