"""A process keeps to its share of a GPU and of its node."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("ray")

from cpfl.engines.ray import cluster


@pytest.mark.parametrize(("share", "reported"), [(0.5, [0.5]), (1.0, [])])
def test_it_keeps_to_its_share_of_the_memory(
    share: float, reported: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    monkeypatch.setenv(cluster.COMPILE_THREADS, "3")
    cluster.limit_to_share(share)
    assert given == reported
    assert os.environ[cluster.COMPILE_THREADS] == "3"  # a user's choice stays


def test_processes_of_a_node_share_its_cores_while_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "cores", lambda: 16)
    assert cluster.compile_threads({"CPU": 16.0, "GPU": 1.0}, 0.5) == 8
    assert cluster.compile_threads({"CPU": 64.0, "GPU": 8.0}, 0.1) == 1
