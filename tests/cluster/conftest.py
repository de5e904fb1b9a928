"""One cluster for all tests: a head and two nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.nodes import Nodes

import cpfl

SMALL: dict[str, Any] = {
    "cohorts": 4,
    "max_rounds": 12,
    "federation.local_epochs": 8,  # rounds that last long enough to be interrupted
    "data.public_limit": 1500,  # two shards
    "distillation.epochs": 2,
    "checkpoint_seconds": 0,
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """A head and two nodes of one CPU each."""
    pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'cpfl[ray]'")
    nodes = Nodes(2)
    try:
        yield nodes
    finally:
        nodes.end()


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., Path]:
    """The same experiment in one process, by its settings."""

    def run(settings: dict[str, Any], **words: Any) -> Path:
        return cpfl.run("digits", out=tmp_path / "plain", settings=settings, engine="workers", workers=1, **words).path

    return run
