"""Opening images that may come from anybody."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from PIL import Image

# Raster formats that Pillow decodes by itself: others, such as EPS, would start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are no images, damaged, or far too large."""


def open_image(source: Path | IO[bytes], format_: str | None = None) -> Image.Image:
    """An image of an allowed format; a known format saves the guessing."""
    return Image.open(source, formats=FORMATS if format_ is None else [format_])
