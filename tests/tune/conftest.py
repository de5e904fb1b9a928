"""As for the crash tests: a killed process loses nothing that it has written, so nothing waits for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """Files are written, and not waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
