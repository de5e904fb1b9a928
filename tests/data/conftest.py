"""Every test decodes into a cache of its own, and finds real data beside the repository where there is some."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CPFL_CACHE", str(folder))
    monkeypatch.delenv("CPFL_DATA", raising=False)
    return folder


@pytest.fixture
def real() -> Path:
    """The folder of real sets."""
    if not REAL.is_dir():
        pytest.skip(f"real data is not at {REAL}")
    return REAL
