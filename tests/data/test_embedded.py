from __future__ import annotations

import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageFont

import cpfl
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
    expected = np.rint(cpfl.load_digits()[0].reshape(-1, 8, 8) * 255).astype(np.uint8)
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in expected)
    assert both.max() == 255


def test_digits_are_those_of_scikit_learn() -> None:
    bunch = pytest.importorskip("sklearn.datasets", reason="scikit-learn, whose digits these are").load_digits()
    x, y = cpfl.load_digits()
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(x * 16, bunch.data)
    np.testing.assert_array_equal(y, bunch.target)


@pytest.mark.parametrize(
    ("name", "split", "fingerprint"),
    [
        ("digits", "train", "7c97b139bbba6029b0436f95bf246ab7b2c37df3db4eb1f0dfffa1520f0e3e72"),
        ("digits-grainy", "test", "eeded217640fe6438096d2065ef49e212813286fe8a9bc7dfb6c83def33152f9"),
    ],
)
def test_digits_are_the_same_every_time(name: str, split: str, fingerprint: str) -> None:
    """And the same as when they were read from scikit-learn: run folders hold these fingerprints."""
    samples = embedded.read(name, split)
    assert samples is not None
    assert samples.fingerprint() == fingerprint


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
