"""Fixtures of the crash tests: one thread, so that runs are bit-equal, and uninterrupted runs to compare with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch

from cpfl import api


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Sums over several threads differ in their last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """A killed process loses nothing that it has written: only a power cut does, and waiting for a disk takes longer
    than the runs. test_writer.py checks what is synced, and when."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> small_runs.Unbroken:
    """A finished, uninterrupted run with these settings; made once, only for reading."""
    made: dict[str, Path] = {}

    def make(**settings: Any) -> Path:
        chosen = small_runs.settings_with(settings)
        key = repr(sorted(chosen.items()))
        if key not in made:
            out = tmp_path_factory.mktemp("unbroken") / "run"
            made[key] = api.run("digits", settings=chosen, out=out, device="cpu", workers=1).path
        return made[key]

    return make
