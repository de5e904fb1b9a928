"""The blocks of code in README and docs, and the notes that say which test runs them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "PACKAGE.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?:^<!-- (?P<note>.+?) -->\n)?^```(?P<kind>sh|python|toml)\n(?P<text>.*?)^```", re.M | re.S)

FILE = re.compile(r"`(?P<name>[\w-]+\.(?:py|toml))`:\n\n```(?:python|toml)\n(?P<text>.*?)^```", re.M | re.S)


def find(name: str) -> Path:
    """The page of the documentation with this file name, in whichever section it is."""
    (page,) = (page for page in PAGES if page.name == name)
    return page


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, each after a sentence that ends with its name."""
    return {file["name"]: file["text"] for file in FILE.finditer(page.read_text())}


def blocks(page: Path) -> list[re.Match[str]]:
    return list(FENCE.finditer(page.read_text()))


def commands(text: str) -> list[list[str]]:
    """The commands of a block, each as its words after `cpfl`: a block has no other programs and no pipes."""
    assert not set("|<>&;$`*?\\") & set(text), f"only a shell can run this: {text}"
    found = [shlex.split(line) for line in text.splitlines()]
    assert all(words[0] == "cpfl" for words in found)
    return [words[1:] for words in found]


def noted(page: str, test: str) -> list[list[str]]:
    """The commands of a page whose note names this test; each as its words after `cpfl`."""
    texts = [block["text"] for block in blocks(find(page)) if test in (block["note"] or "")]
    return [words for text in texts for words in commands(text)]
