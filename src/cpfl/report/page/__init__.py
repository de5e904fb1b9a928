"""The page: one self-contained HTML file, rendered from the report's tree, or kept fresh from a server."""

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import vl_convert

from cpfl.report.content import Tree, all_figures
from cpfl.report.style import CONVERT

_vega = cache(vl_convert.javascript_bundle)  # Vega, Vega-Lite and Vega-Embed as one script


def render(tree: Tree, *, refresh: str = "", files: str = "", vega: str = "") -> str:
    """The whole page, which opens offline.

    Parameters
    ----------
    refresh
        An address that answers with `fresh(tree)` as JSON; the page then polls it and shows what has changed.
    files
        The folder of the figures, to link them.
    vega
        Vega's script, if the caller has it already.
    """
    scripts = [vega or _vega(), _text("page.js")]
    figures = json.dumps(_specs(tree), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return _template("page.html").render(
        tree=tree,
        body=body(tree, files),
        figures=figures.replace("<", "\\u003c"),  # cannot end the script element it stands in
        refresh=refresh,
        style=_text("page.css"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def fresh(tree: Tree) -> dict[str, Any]:
    """What an open page needs to show this tree."""
    return {"body": body(tree), "figures": _specs(tree)}


def body(tree: Tree, files: str = "") -> str:
    """All that a reader sees; every name in it is escaped."""
    return _template("body.html").render(tree=tree, files=files, formats=list(CONVERT))


@cache
def _hash(script: str) -> str:
    """The hash by which a browser allows this script in the page, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _specs(tree: Tree) -> dict[str, Any]:
    """Specifications as wide as the page allows, without titles: the page has headings of its own."""
    fit = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {
        figure["id"]: {key: value for key, value in figure["spec"].items() if key != "title"} | fit
        for figure in all_figures(tree)
    }


@cache
def _template(name: str) -> jinja2.Template:
    strict: dict[str, Any] = {"autoescape": True, "undefined": jinja2.StrictUndefined}
    loader = jinja2.FunctionLoader(_text)
    return jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **strict).get_template(name)


@cache
def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
