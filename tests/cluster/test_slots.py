"""How many workers fit on nodes: shares of whole GPUs, each with a CPU of the same node."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from cpfl.engines.ray.cluster import slots

BOX = {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize(
    ("share", "a_gpu"),
    [(1.0, 1), (0.6, 1), (0.5, 2), (1 / 3, 3), (0.3, 3), (0.2, 5), (0.1, 10), (0.05, 20)],
)
def test_a_share_is_one_of_a_single_gpu(share: float, a_gpu: int) -> None:
    assert slots([{"CPU": 64.0, "GPU": 1.0}], share) == a_gpu
    assert slots([BOX], share) == min(64, 8 * a_gpu)


def test_every_worker_has_a_cpu_of_the_node_of_its_gpu() -> None:
    assert slots([BOX, {"CPU": 100.0}], 0.1) == 64
    assert slots([{"GPU": 8.0}, {"CPU": 100.0}], 1.0) == 0
    assert slots([BOX, {"CPU": 2.0, "GPU": 4.0}], 1.0) == 8 + 2


def test_without_gpus_a_worker_is_a_whole_cpu() -> None:
    assert slots([{"CPU": 2.0}, {"CPU": 1.5}, {}, BOX], 0.0) == 2 + 1 + 64
