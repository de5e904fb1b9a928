"""One cluster for all tests: a head and two nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.nodes import Nodes, cpfl, settings

SMALL: dict[str, Any] = {
    "cohorts": 4,
    "max_rounds": 12,
    "federation.local_epochs": 12,  # rounds that last long enough to be interrupted
    "data.public_limit": 1500,  # two shards
    "distillation.epochs": 2,
    "checkpoint_seconds": 0,
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """A head and two nodes of one CPU each."""
    pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'cpfl[ray]'")
    nodes = Nodes()
    try:
        nodes.add()
        nodes.add()
        yield nodes
    finally:
        nodes.end()


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The same experiment in one process, by its settings; made once."""
    made: dict[str, Path] = {}

    def run(**changes: Any) -> Path:
        words = settings({**SMALL, **changes})
        key = " ".join(words)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("plain") / "run"
            common = ["--engine", "workers", "--workers", "1", "--out", str(made[key])]
            subprocess.run(cpfl("run", "digits", *words, *common), check=True, capture_output=True, timeout=200)
        return made[key]

    return run
