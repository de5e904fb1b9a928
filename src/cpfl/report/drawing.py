"""Specifications become files. Runs as a program, too: a second process that draws while the first does other things.

It is started by its path, not as a part of cpfl, whose import would take it longer than the drawing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vl_convert

Spec = dict[str, Any]
CONVERT: dict[str, Callable[[str], bytes]] = {
    "svg": str.encode,
    "pdf": vl_convert.svg_to_pdf,
    "png": lambda drawn: vl_convert.svg_to_png(drawn, scale=2),
}


def svg(spec: Spec) -> str:
    """A picture as text."""
    return vl_convert.vegalite_to_svg(spec)


def draw(spec: Spec, place: Path, name: str) -> None:
    """A picture in every format; Vega draws it once."""
    drawn = svg(spec)
    for suffix, convert in CONVERT.items():
        (place / f"{name}.{suffix}").write_bytes(convert(drawn))


def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; takes seconds the first time."""
    return vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default


def main(place: Path) -> None:
    """Make the script, then draw what comes in as one JSON object, {name: specification}, then tell the script."""
    script = vega()
    for name, spec in json.load(sys.stdin).items():
        draw(spec, place, name)
    sys.stdout.write(script)


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        main(Path(sys.argv[1]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
