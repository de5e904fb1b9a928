from __future__ import annotations

import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageFont
from sklearn.datasets import load_digits

from cpfl.data import embedded

DRAWING = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "draw_letters.py"))


def test_digits_are_all_there_once() -> None:
    train, test = embedded.digits("train"), embedded.digits("test")
    assert train.shape == test.shape == (1, 8, 8)
    assert train.x.dtype == np.uint8
    assert len(train) + len(test) == 1797
    assert len(test) == round(0.2 * 1797)
    assert train.y is not None
    assert test.y is not None
    assert np.bincount(test.y).min() > 20
    both = np.concatenate([train.x, test.x])[:, 0]
    expected = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in expected)
    assert both.max() == 255


@pytest.mark.parametrize("kept", ["where we look", "elsewhere"])
def test_digits_are_as_scikit_learn_hands_them_out(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept == "elsewhere":
        monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    images, labels = embedded._scanned.__wrapped__()
    bunch = load_digits()
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(labels, bunch.target)


def test_digits_are_the_same_every_time() -> None:
    assert embedded.digits("test").fingerprint() == embedded.digits("test").fingerprint()


def test_letters_have_the_form_of_digits() -> None:
    letters, digits = embedded.letters(), embedded.digits("train")
    assert letters.x.shape == (4000, 1, 8, 8)
    assert letters.x.dtype == np.uint8
    assert letters.y is None
    # Only the 17 values that a 4×4 block can have.
    assert set(np.unique(letters.x)) <= {round(k * 255 / 16) for k in range(17)}
    # As much ink, as many empty and full blocks, the whole height.
    assert abs(letters.x.mean() - digits.x.mean()) < 5
    assert abs((letters.x == 0).mean() - (digits.x == 0).mean()) < 0.06
    assert abs((letters.x == 255).mean() - (digits.x == 255).mean()) < 0.04
    assert ((letters.x[:, 0] > 0).any(axis=2).sum(axis=1) >= 7).mean() > 0.95
    assert len({image.tobytes() for image in letters.x}) > 3900


def test_letters_are_the_same_every_time_quick_and_the_callers_own() -> None:
    first = embedded.letters()
    assert first.fingerprint() == "789b47ab805e628afa8ff34ae69687cd2fe68d829cc39e6ed20ef6cc516e5b3d"
    expected = first.fingerprint()
    first.x[:] = 0  # type: ignore[assignment]
    started = time.process_time()  # of this process: another may have the core
    assert embedded.letters().fingerprint() == expected
    assert time.process_time() - started < 15  # under 0.1 s


def test_no_letter_is_drawn_like_a_digit() -> None:
    assert not set("0123456789OoIlQ") & set(DRAWING["LETTERS"])
    assert len(DRAWING["LETTERS"]) >= 36


def test_the_stored_letters_are_the_drawn_ones() -> None:
    with np.load(embedded.LETTERS, allow_pickle=False) as stored:
        blocks = stored["blocks"]
    drawn = DRAWING["blocks"]()
    assert blocks.shape == drawn.shape == (4000, 8, 8)
    assert blocks.dtype == drawn.dtype == np.uint8
    assert (blocks != drawn).mean() < 0.2  # 0 with the Pillow that drew them; another FreeType moves a few strokes


def test_a_pillow_without_freetype(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: int) -> None:
        raise ImportError("The _imagingft C module is not installed")

    monkeypatch.setattr(ImageFont, "load_default", missing)
    assert len(embedded.letters()) == 4000
