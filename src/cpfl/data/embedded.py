"""Sets that need no file: `digits` to train on, `letters` as its unlabelled public set, and both with grain.

Both look like NIST's 8×8 digits: a 32×32 black and white drawing, every 4×4 block of it counted. The letters are
drawn here with Pillow's built-in font, so a first run works on a machine without data, fonts or a network.
"""

import gzip
import importlib.util
import math
import string
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from cpfl.data.samples import Samples
from cpfl.errors import DataError
from cpfl.randomness import stream

TEST_SHARE = 0.2
LETTER_COUNT = 4000
GRAIN = 0.5  # deviation of the grain, in units of white
# The public set must hold no digit, so letters that are drawn exactly like one stay out.
DIGIT_LOOKALIKES = "OoQDIliZzSsBbqg"
LETTERS = "".join(sorted(set(string.ascii_letters) - set(DIGIT_LOOKALIKES)))

CANVAS = 96  # holds a rotated, sheared glyph before it is cropped
FONT_SIZE = 56
FIELD = 32  # NIST's bitmap
BLOCK = 4  # 4×4 pixels of it become one value 0..16


def read(name: str, split: str) -> Samples | None:
    """One split of a built-in set; None where it has no such split."""
    if split not in ("train", "test") or (name.startswith("letters") and split == "test"):
        return None
    samples = letters() if name.startswith("letters") else digits(split)
    if not name.endswith("-grainy"):
        return samples
    # The same images as a bad scanner sees them. Clean digits are so easy that small cohorts never overfit.
    part = 2 if name.startswith("letters") else int(split == "test")
    grain = stream(0, "grain", part).normal(0, 255 * GRAIN, samples.x.shape)
    return replace(samples, x=np.clip(np.rint(samples.x.astype(np.float64) + grain), 0, 255).astype(np.uint8))


def digits(split: str) -> Samples:
    """scikit-learn's 1,797 digits; a fixed fifth of them is the test set."""
    images, labels = _scanned()
    order = stream(0, "test").permutation(len(images))
    held_out = round(TEST_SHARE * len(order))
    # Sorted, so that the samples keep the source's order.
    index = np.sort(order[:held_out] if split == "test" else order[held_out:])
    return Samples(_to_bytes(images[index]), labels[index].astype(np.int64))


@cache
def _scanned() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Block counts and labels, from scikit-learn's file: its import takes longer than a small run."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt") as file:
                rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, FIELD // BLOCK, FIELD // BLOCK), rows[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps it elsewhere

    bunch = load_digits()
    return bunch.images, bunch.target


def letters() -> Samples:
    """4,000 drawn letters, unlabelled: near the digits in stroke and size, and none of them a digit."""
    return Samples(_drawn_letters().copy())


@cache
def _drawn_letters() -> NDArray[np.uint8]:
    rng = stream(0, "letters")
    drawings = np.stack([_written(rng) for _ in range(LETTER_COUNT)])
    blocks = drawings.reshape(LETTER_COUNT, FIELD // BLOCK, BLOCK, FIELD // BLOCK, BLOCK).sum(axis=(2, 4))
    return _to_bytes(blocks)


def _written(rng: np.random.Generator) -> NDArray[np.bool_]:
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
    glyph = _glyph(letter).transform((CANVAS, CANVAS), Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)

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
def _glyph(letter: str) -> Image.Image:
    """A letter in the middle of its canvas."""
    try:
        font = ImageFont.load_default(FONT_SIZE)
    except ImportError as error:
        raise DataError("the set 'letters' is drawn with FreeType, which this build of Pillow lacks") from error
    image = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(image).text((CANVAS / 2, CANVAS / 2), letter, fill=255, font=font, anchor="mm")
    return image


def _to_bytes(blocks: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Block counts 0..16 as one grey channel 0..255."""
    return np.rint(blocks * (255 / BLOCK**2)).astype(np.uint8)[:, None]
