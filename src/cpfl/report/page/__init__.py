"""The page: one self-contained HTML file, rendered from the report's tree; or kept fresh from a server."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from cpfl.report import drawing
from cpfl.report.content import Tree, all_figures


def render(tree: Tree, *, refresh: str = "", files: str = "", vega: str = "") -> str:
    """The whole page, which opens offline.

    `files` is the folder of the pictures, to link them. `refresh` is an address that answers with `fresh(tree)` as
    JSON: the page then asks it again and again, and shows what has changed. `vega` is that script, if it is at hand.
    """
    scripts = [vega or _vega(), _text("page.js")]
    return _template("page.html").render(
        tree=tree,
        body=body(tree, files),
        figures=_json(_specs(tree)),
        refresh=refresh,
        style=_text("page.css"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def fresh(tree: Tree) -> dict[str, Any]:
    """What a page that is being looked at needs to become that of this tree."""
    return {"body": body(tree), "figures": _specs(tree)}


def body(tree: Tree, files: str = "") -> str:
    """All that a reader sees; every name in it is escaped."""
    return _template("body.html").render(tree=tree, files=files, formats=list(drawing.CONVERT))


@cache
def _vega() -> str:
    return drawing.vega()


@cache
def _hash(script: str) -> str:
    """What a browser must find in a script to run it: no other one in the page will."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _specs(tree: Tree) -> dict[str, Any]:
    """Specifications as wide as the page lets them be."""
    fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    # The page has headings of its own above the pictures.
    return {
        figure["id"]: {key: value for key, value in figure["spec"].items() if key != "title"} | fit
        for figure in all_figures(tree)
    }


def _json(tree: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(tree, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
