"""Draw the built-in public set `letters` and write it to src/cpfl/data/letters.npz, from which the package reads it.

Every letter of Pillow's built-in font is bent like handwriting, inked on 32×32 pixels and counted in blocks of 4×4,
as NIST did for the digits. The pixels depend on the version of FreeType in Pillow: draw them again only on purpose.

python benchmarks/draw_letters.py
"""

from __future__ import annotations

import argparse
import math
import string
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from cpfl.data import embedded
from cpfl.randomness import stream

COUNT = 4000
# The public set must hold no digit, so letters that are drawn exactly like one stay out.
DIGIT_LOOKALIKES = "OoQDIliZzSsBbqg"
LETTERS = "".join(sorted(set(string.ascii_letters) - set(DIGIT_LOOKALIKES)))

CANVAS = 96  # holds a rotated, sheared glyph before it is cropped
FONT_SIZE = 56
FIELD = 32  # NIST's bitmap
BLOCK = 4  # 4×4 pixels of it become one value 0..16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=embedded.LETTERS)
    np.savez_compressed(parser.parse_args().out, blocks=blocks())


def blocks() -> NDArray[np.uint8]:
    """All letters as block counts 0..16, (4000, 8, 8)."""
    rng = stream(0, "letters")
    drawings = np.stack([written(rng) for _ in range(COUNT)])
    in_blocks = drawings.reshape(COUNT, FIELD // BLOCK, BLOCK, FIELD // BLOCK, BLOCK)
    return np.asarray(in_blocks.sum(axis=(2, 4)), np.uint8)


def written(rng: np.random.Generator) -> NDArray[np.bool_]:
    """One letter as handwriting: turned, slanted, stretched, then fitted into the field as NIST did."""
    letter = LETTERS[rng.integers(len(LETTERS))]
    turn, shear = rng.normal(0, math.radians(7)), rng.normal(0, 0.15)
    bends = rng.normal(0, 4, size=(4, 2))
    widest = int(np.clip(rng.normal(21, 2), 15, 27))
    shift = round(rng.normal(0, 1))
    share = rng.normal(0.31, 0.03)  # of the field that is ink: the digits' own mean and spread

    # The canvas is read through a bent quadrilateral: no two strokes stay parallel, as in handwriting.
    centre, cos, sin = CANVAS / 2, math.cos(turn), math.sin(turn)
    corners: list[float] = []
    for (x, y), (bend_x, bend_y) in zip([(-1, -1), (-1, 1), (1, 1), (1, -1)], bends, strict=True):
        bent_x, bent_y = centre * (x + shear * y) + bend_x, centre * y + bend_y
        corners += [centre + cos * bent_x - sin * bent_y, centre + sin * bent_x + cos * bent_y]
    glyph = glyph_image(letter).transform((CANVAS, CANVAS), Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)

    # NIST scaled every digit to the full height of the field and centred it; a narrow letter stays narrow.
    box = glyph.getbbox() or (0, 0, CANVAS, CANVAS)
    width = int(np.clip(1.2 * FIELD * (box[2] - box[0]) / (box[3] - box[1]), 11, widest))
    field = Image.new("L", (FIELD, FIELD))
    field.paste(glyph.resize((width, FIELD), Image.Resampling.BILINEAR, box=box), ((FIELD - width) // 2 + shift, 0))

    # The pen: soft edges, and the wanted share of the field is ink. A narrow letter does not become a blot.
    soft = np.asarray(field.filter(ImageFilter.GaussianBlur(1.6)))
    wanted = round(min(share, 0.6 * width / FIELD) * soft.size)
    ink: NDArray[np.bool_] = soft > np.partition(soft, -wanted, axis=None)[-wanted]
    return ink


@cache
def glyph_image(letter: str) -> Image.Image:
    """A letter in the middle of its canvas."""
    image = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(image).text(
        (CANVAS / 2, CANVAS / 2), letter, fill=255, font=ImageFont.load_default(FONT_SIZE), anchor="mm"
    )
    return image


if __name__ == "__main__":
    main()
