"""Sets that need no download: `digits` to train on, `letters` as its unlabelled public set, and both with grain.

Both look like NIST's 8×8 digits: a 32×32 black and white drawing, every 4×4 block of it counted, 0 to 16.
benchmarks/draw_letters.py drew the letters once: their pixels would otherwise depend on the version of FreeType.
"""

import gzip
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpfl.data.samples import Samples
from cpfl.randomness import stream

LETTERS = Path(__file__).with_name("letters.npz")
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
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps it elsewhere

    bunch = load_digits()
    return bunch.images, bunch.target


def letters() -> Samples:
    """4,000 drawn letters, unlabelled: near the digits in stroke and size, and none of them a digit."""
    with np.load(LETTERS, allow_pickle=False) as stored:
        return Samples(_to_bytes(stored["blocks"]))


def _to_bytes(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Block counts 0..16 as one grey channel 0..255."""
    return np.rint(blocks * (255 / 16)).astype(np.uint8)[:, None]
