"""A worker whose GPU fails is replaced like one that died; one that loads the task for long is waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, ended, events, python, said, same, settings, start

from cpfl.federation.selection.base import CohortInfo, Random

pytestmark = pytest.mark.cluster


class Failing(Random):
    """Random, but the first worker that reaches the third round reports that its GPU is full."""

    def __init__(self, cohort: CohortInfo, token: str) -> None:
        super().__init__(cohort)
        self._token = Path(token)

    def select(
        self, available: Sequence[int], count: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        if round > 2 and self._on_a_worker():
            try:
                self._token.unlink()
            except FileNotFoundError:
                pass
            else:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().select(available, count, round, rng, clock)

    def _on_a_worker(self) -> bool:
        ray = sys.modules.get("ray")
        return bool(ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id())


def test_a_gpu_that_is_full_costs_a_worker_not_the_run(
    cluster: Nodes, plain: Callable[..., Path], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch()
    own = {
        "federation.selection": "tests.cluster.test_gpu_errors_on_ray:Failing",
        "federation.selection_args.token": str(token),
    }
    out = tmp_path / "run"
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    ended(start("run", "digits", *settings(SMALL | own), *options, "--out", out))
    assert not token.exists()
    (died,) = [event for event in events(out) if event["event"] == "worker died"]
    assert died["why"] == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert died["run_again"]
    same(out, plain(SMALL | own))


# Loading the task takes longer than a worker may wait for a slot; then there are more workers than slots.
SLOW = """
import itertools, json, os, sys, time
import ray
from cpfl.settings import experiment_file
from cpfl.data.given import Given
from cpfl.engines.ray import ClusterConfig, cluster, pool
from cpfl.errors import ClusterError
from cpfl.task.task import build_task

class Slow:
    def __init__(self, task, gate): self.task, self.gate = task, gate
    def __reduce__(self): return slowly, (self.task, self.gate)

def slowly(task, gate):
    while os.path.exists(gate):
        time.sleep(0.05)
    return task

def clock():
    # The time limit passes when all workers have their slots, and nothing is loaded before it has passed.
    placed = len(workers.workers) == 2 and all(worker.placed for worker in workers.workers)
    if placed and os.path.exists(gate):
        os.unlink(gate)
    return 2 * pool.PLACEMENT_SECONDS * placed

config, gate = ClusterConfig(sys.argv[1]), sys.argv[2]
connection = cluster.connection(config)
connection.__enter__()
found = cluster.check_cluster(config, 2)
task = ray.put(Slow(build_task(experiment_file.load("digits"), [], Given()), gate))
workers = pool.WorkerPool(found, task, lambda: 0.0)
workers.clock = clock
workers.start()
print(json.dumps([len(workers.ready), [worker.placed for worker in workers.workers]]))
try:
    pool.WorkerPool(found, None, itertools.count(0, 100).__next__).start()
except ClusterError as error:
    print(json.dumps([str(error)]))
"""


def test_a_worker_that_loads_for_long_has_its_slot(cluster: Nodes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    loaded, (late,) = said(python(SLOW, cluster.address, gate))
    assert not gate.exists()
    assert loaded == [2, [True, True]]
    assert late.startswith("2 of 2 workers found no free slot on the Ray cluster in 300 s")
