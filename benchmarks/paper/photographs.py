"""A public set of STL-10's shape: square windows of larger photographs, 96×96 pixels each.

Pictures are taken out of files of any kind that hold WebP as it is, such as Qt's resource files. Those with an alpha
channel (clippings, drawings) and small ones are skipped. The logarithm of a window's side is drawn evenly,
from 96 pixels to the side of the picture, and so is its position. `data.public_fit=crop` then takes 32 of the 96
pixels, as the authors do with STL-10, `resize` shrinks them all.

    python benchmarks/paper/photographs.py --count 20000 --data DATA FILE...
"""

from __future__ import annotations

import argparse
import io
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from cpfl.data.importer import import_folder

NAME, SIDE = "photographs", 96
SMALLEST = 2 * SIDE
WEBP = re.compile(rb"RIFF(?P<size>.{4})WEBP", re.DOTALL)


def pictures(file: Path) -> Iterator[Image.Image]:
    """Every photograph that a file holds."""
    held = file.read_bytes()
    for match in WEBP.finditer(held):
        size = int.from_bytes(match["size"], "little") + 8
        try:
            picture = Image.open(io.BytesIO(held[match.start() : match.start() + size]))
            picture.load()
        except (UnidentifiedImageError, OSError):
            continue  # only looked like one
        if picture.mode == "RGB" and min(picture.size) >= SMALLEST:
            yield picture


def window(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A square of it, shrunk."""
    side = SIDE * math.exp(rng.uniform() * math.log(min(picture.size) / SIDE))
    left, top = (rng.uniform() * (length - side) for length in picture.size)
    return picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--data", type=Path, required=True, help=f"the folder of data sets; {NAME} is made there")
    parser.add_argument("files", nargs="+", type=Path)
    words = parser.parse_args()
    found = [picture for file in sorted(words.files) for picture in pictures(file)]
    if not found:
        parser.error("these files hold no photograph that is large enough")
    rng = np.random.default_rng(90)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(words.count):
            cut = window(found[number % len(found)], rng)
            cut.save(Path(folder) / f"{number:06d}.webp", quality=80)
        made = import_folder(Path(folder), NAME, words.data)
    print(f"{words.count} windows of {len(found)} photographs in {made}")


if __name__ == "__main__":
    main()
