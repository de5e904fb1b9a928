"""Images from files that may come from anybody, and a cache of decoded sets.

Decoded images are kept as .npy in the user's cache folder: a set is decoded once and memory-mapped from then on.
The cache must not break a run: one that is missing, damaged, read-only or on a full disk is as good as none.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import platformdirs
from PIL import Image

from cpfl.data.samples import Array

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
# Raster formats that Pillow decodes by itself: others, such as EPS, would start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for files that are no images, damaged, or far too large."""

DECODER = "1"  # part of every cache key: raise it when the decoder's output changes


def open_image(source: Path | IO[bytes], format_: str | None = None) -> Image.Image:
    """An image of an allowed format; a known format saves the guessing."""
    return Image.open(source, formats=FORMATS if format_ is None else [format_])


def cache_folder() -> Path:
    """$CPFL_CACHE, or the user's cache folder of this system."""
    chosen = os.environ.get("CPFL_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("cpfl"))


def cached(files: Sequence[Path], decode: Callable[[], Array]) -> Array:
    """What `decode` makes of these files: from the cache if it holds them whole, else decoded and cached."""
    contents = [f"\n{file.name} {file.stat().st_size} {_digest(file)}" for file in files]
    key = hashlib.sha256("".join([DECODER, *contents]).encode()).hexdigest()
    images = cache_folder() / "decoded" / f"{key}.npy"
    checksum = images.with_suffix(".sha256")
    with contextlib.suppress(OSError, ValueError):
        if _digest(images) == checksum.read_text().strip():
            # Copy on write: callers get an array like any other, and the file stays as it is.
            return np.asarray(np.load(images, mmap_mode="c", allow_pickle=False))
    decoded = decode()
    with contextlib.suppress(OSError):
        images.parent.mkdir(parents=True, exist_ok=True)
        # Both files appear whole or not at all. A crash between the two leaves images without a checksum: no entry.
        with tempfile.TemporaryDirectory(dir=images.parent, prefix="partial-") as scratch:
            partial = Path(scratch) / images.name
            np.save(partial, decoded, allow_pickle=False)
            digest = _digest(partial)
            partial.replace(images)
            partial.write_text(digest)
            partial.replace(checksum)
    return decoded


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
