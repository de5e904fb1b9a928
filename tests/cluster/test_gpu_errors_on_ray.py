"""A worker whose GPU fails is replaced like one that died; one that loads the task for long is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import LOOPBACK, Nodes, ended, events, same, settings, start

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
import sys, time
import ray
from cpfl.settings import experiment_file
from cpfl.data.federated import Given
from cpfl.engines.ray import ClusterConfig, cluster, pool
from cpfl.errors import ClusterError
from cpfl.task.task import build_task

class Slow:
    def __init__(self, task): self.task = task
    def __reduce__(self): return slowly, (self.task,)

def slowly(task):
    time.sleep(40)  # a little more than the time for placement: a slow machine may need almost all of that
    return task

pool.PLACEMENT_SECONDS = 39.0
config = ClusterConfig(sys.argv[1])
connection = cluster.connection(config)
connection.__enter__()
found = cluster.check_cluster(config, 2)
workers = pool.WorkerPool(found, ray.put(Slow(build_task(experiment_file.load("digits"), [], Given()))))
began = time.monotonic()
workers.start()
placed = all(worker.placed for worker in workers.workers)
print(len(workers.ready), placed, time.monotonic() - began > pool.PLACEMENT_SECONDS)
pool.PLACEMENT_SECONDS = 5.0
try:
    pool.WorkerPool(found, None).start()
except ClusterError as error:
    print(error)
"""


def test_a_worker_that_loads_for_long_has_its_slot(cluster: Nodes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW, cluster.address],
        env={**os.environ, **LOOPBACK}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded, late = done.stdout.splitlines()
    assert loaded == "2 True True"
    assert late.startswith("2 of 2 workers found no free slot on the Ray cluster in 5 s")
