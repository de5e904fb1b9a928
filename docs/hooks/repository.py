"""What the site shows of the repository besides docs/: the pages of results/, and mermaid for the diagrams."""

from __future__ import annotations

import importlib.resources
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
MERMAID = "javascripts/mermaid.js"  # the package mermaidx holds it; the theme would load it from a CDN
INDEX = """# Measurements

Every figure of these pages has its command beside it. The records are in the repository, in `results/`.

"""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: add the measurements with their pictures, a page that lists them, and mermaid."""
    lines = []
    for source in sorted(ROOT.glob("results/*/*")):
        page = _page(source)
        if page:
            files.append(File.generated(config, page, content=source.read_text()))
            if source.name == "README.md":
                lines.append(f"- [{source.read_text().splitlines()[0].lstrip('# ')}]({PurePosixPath(page).name})")
        elif source.suffix == ".png":
            files.append(File.generated(config, _asset(source), content=source.read_bytes()))
    files.append(File.generated(config, "results/index.md", content=INDEX + "\n".join(lines) + "\n"))
    script = importlib.resources.files("mermaidx").joinpath("assets/mermaid.js")
    files.append(File.generated(config, MERMAID, content=script.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Called by mkdocs: links that leave docs/ lead to the pages made above; what the site has not is only named."""
    source = _source(page.file.src_uri)

    def replaced(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path, sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        wanted = Path(os.path.normpath(source.parent / path))
        uri = _page(wanted) or (_asset(wanted) if wanted.suffix == ".png" else None)
        if uri is None and wanted.is_relative_to(ROOT / "docs"):
            uri = wanted.relative_to(ROOT / "docs").as_posix()
        if uri is None:
            return f"{text} (`{wanted.relative_to(ROOT)}`)" if text.strip("`") not in str(wanted) else text
        return f"{picture}[{text}]({os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent)}{sign}{anchor})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Called by mkdocs: only pages with a diagram load mermaid."""
    if 'class="mermaid"' not in output:
        return output
    script = os.path.relpath(MERMAID, PurePosixPath(page.file.dest_uri).parent)
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def _source(uri: str) -> Path:
    """The file that a page of the site was made from."""
    for source in ROOT.glob("results/*/*.md"):
        if _page(source) == uri:
            return source
    return ROOT / "docs" / uri


def _page(source: Path) -> str | None:
    """Where the site has a page of results/: under the name of its folder, or of the file."""
    if source.suffix != ".md" or source.parent.parent != ROOT / "results":
        return None
    name = source.parent.name if source.name == "README.md" else source.stem
    return f"results/measured-{name}.md"


def _asset(source: Path) -> str | None:
    """Where the site has a picture of results/."""
    if source.parent.parent != ROOT / "results":
        return None
    return f"results/measured/{source.parent.name}/{source.name}"
