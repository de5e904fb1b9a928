"""Sets that need no download: `digits` to train on, `letters` as its unlabelled public set, and both with grain.

Both look like NIST's 8×8 digits: a 32×32 black and white drawing, every 4×4 block of it counted, 0 to 16.
benchmarks/draw_letters.py drew the letters once: their pixels would otherwise depend on the version of FreeType.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.samples import Samples
from cpfl.randomness import stream

DIGITS, LETTERS = (Path(__file__).with_name(f"{name}.npz") for name in ("digits", "letters"))
TEST_SHARE = 0.2
GRAIN = 0.5  # deviation of the grain, in units of white
GRAIN_STREAMS = {("digits", "train"): 0, ("digits", "test"): 1, ("letters", "train"): 2}


def read(name: str, split: str) -> Samples | None:
    """One split of a built-in set; None where it has no such split."""
    kind = name.removesuffix("-grainy")
    if (kind, split) not in GRAIN_STREAMS:
        return None
    samples = letters() if kind == "letters" else digits(split)
    if name == kind:
        return samples
    # The same images as a bad scanner sees them. Clean digits are so easy that small cohorts never overfit.
    grain = stream(0, "grain", GRAIN_STREAMS[kind, split]).normal(0, 255 * GRAIN, samples.x.shape)
    return Samples(np.clip(np.rint(samples.x.astype(np.float64) + grain), 0, 255).astype(np.uint8), samples.y)


def digits(split: str) -> Samples:
    """The 1,797 digits; a fixed fifth of them is the test set."""
    images, labels = _scanned()
    order = stream(0, "test").permutation(len(images))
    held_out = round(TEST_SHARE * len(order))
    # Sorted, so that the samples keep the source's order.
    index = np.sort(order[:held_out] if split == "test" else order[held_out:])
    return Samples(_to_bytes(images[index]), labels[index].astype(np.int64))


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """1,797 handwritten digits, for first steps: pixels from 0 to 1, (1797, 64), and labels.

    They are those of scikit-learn's load_digits, divided by 16; digits.md says where they come from.
    """
    blocks, labels = _scanned()
    return blocks.reshape(len(blocks), -1).astype(np.float32) / np.float32(16), labels.astype(np.int64)


def _scanned() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Block counts and labels."""
    with np.load(DIGITS, allow_pickle=False) as stored:
        return stored["blocks"], stored["labels"]


def letters() -> Samples:
    """4,000 drawn letters, unlabelled: near the digits in stroke and size, and none of them a digit."""
    with np.load(LETTERS, allow_pickle=False) as stored:
        return Samples(_to_bytes(stored["blocks"]))


def _to_bytes(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Block counts 0..16 as one grey channel 0..255."""
    return np.rint(blocks * (255 / 16)).astype(np.uint8)[:, None]
