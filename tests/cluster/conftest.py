"""One cluster for all tests: a head and two nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.gate import Gate
from tests.cluster.nodes import Nodes, kill_started, zygote

import cpfl

SMALL: dict[str, Any] = {
    "cohorts": 4,
    "max_rounds": 6,
    "data.public_limit": 1500,  # two shards
    "distillation.epochs": 2,
    "checkpoint_seconds": 0,
}


@pytest.fixture(scope="package", autouse=True)
def forks() -> Iterator[None]:
    """What forks the programs of the tests ends with the last one."""
    yield
    if zygote.cache_info().currsize:
        zygote().end()
        zygote.cache_clear()


@pytest.fixture(scope="package")
def cluster(forks: None) -> Iterator[Nodes]:
    """A head and two nodes of one CPU each."""
    pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'cpfl[ray]'")
    nodes = Nodes(2)
    try:
        yield nodes
    finally:
        nodes.end()


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Programs end with the test that began them."""
    yield
    kill_started()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Holds a run before its third round."""
    return Gate(tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., Path]:
    """The same experiment in one process, by its settings."""

    def run(settings: dict[str, Any], **words: Any) -> Path:
        return cpfl.run("digits", out=tmp_path / "plain", settings=settings, engine="workers", workers=1, **words).path

    return run
