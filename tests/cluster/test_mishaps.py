"""A worker whose GPU fails it is replaced like one that died; one that opens for long is waited for."""

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

from cpfl.federation.selection import Cohort, Random

pytestmark = pytest.mark.cluster


class Failing(Random):
    """Random, but the first worker that comes to the third round says that its GPU is full."""

    def __init__(self, cohort: Cohort, token: str) -> None:
        super().__init__(cohort)
        self._token = Path(token)

    def choose(
        self, able: Sequence[int], wanted: int, round: int, rng: np.random.Generator, clock: float
    ) -> Sequence[int]:
        if round > 2 and self._on_a_worker():
            try:
                self._token.unlink()
            except FileNotFoundError:
                pass
            else:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().choose(able, wanted, round, rng, clock)

    def _on_a_worker(self) -> bool:
        ray = sys.modules.get("ray")
        return bool(ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id())


def test_a_gpu_that_is_full_costs_a_worker_not_the_run(
    cluster: Nodes, plain: Callable[..., Path], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch()
    own = {"federation.selection": "tests.cluster.test_mishaps:Failing", "federation.selection_args.token": str(token)}
    out = tmp_path / "run"
    place = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    ended(start("run", "digits", *settings(SMALL | own), *place, "--out", out))
    assert not token.exists()
    (died,) = [event for event in events(out) if event["event"] == "worker died"]
    assert died["why"] == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert died["run_again"]
    same(out, plain(SMALL | own))


# The problem takes longer to be opened than a worker may take to find room; then one more worker than there is room.
SLOW = """
import sys, time
import ray
from cpfl import experiment_file
from cpfl.data.federated import Given
from cpfl.engines.ray import Place, cluster, hands
from cpfl.errors import ClusterError
from cpfl.problem import prepare

class Slow:
    def __init__(self, problem): self.problem = problem
    def __reduce__(self): return slowly, (self.problem,)

def slowly(problem):
    time.sleep(40)  # longer than there is for finding room, by little: that is how long a slow machine may take for it
    return problem

hands.ROOM_SECONDS = 39.0
ours = cluster.connect(Place(sys.argv[1]))
found = cluster.look(Place(sys.argv[1]), 2, 2, ours)
all_hands = hands.Hands(found, ray.put(Slow(prepare(experiment_file.load("digits"), [], Given()))))
began = time.monotonic()
all_hands.begin()
print(len(all_hands.ready), all_hands.coming, time.monotonic() - began > hands.ROOM_SECONDS)
hands.ROOM_SECONDS = 5.0
try:
    hands.Hands(found, None).begin()
except ClusterError as error:
    print(error)
"""


def test_a_worker_that_opens_for_long_has_found_room(cluster: Nodes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW, cluster.address],
        env={**os.environ, **LOOPBACK}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened, late = done.stdout.splitlines()
    assert opened == "2 True True"
    assert late.startswith("2 of 2 workers found no room on the Ray cluster in 5 s")
