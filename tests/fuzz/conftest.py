"""How many examples the fuzz tests try, and a tally of what they tried.

In `make test` the examples are few and always the same. `make fuzz` raises FUZZ and draws others in every batch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

TALLY: Counter[str] = Counter()


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """As in tests/runs/conftest.py: a kill loses nothing that was written."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tally() -> Counter[str]:
    """What was tried; tests add to it."""
    return TALLY


def pytest_configure() -> None:
    more = os.environ.get("FUZZ")
    hypothesis.settings.register_profile(
        "fuzz",
        hypothesis.settings.get_profile("patient"),
        derandomize=not more,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a smaller example of a run takes minutes
    )


def pytest_sessionfinish() -> None:
    if (path := os.environ.get("FUZZ_TALLY")) and TALLY:
        Path(path).write_text(json.dumps(TALLY))
