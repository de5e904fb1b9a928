"""Which worker trains which cohorts: packing by cost, and cohorts that move to a free worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.gate import Gate
from tests.cluster.nodes import Nodes, at_work, ended, same, settings, start, until, workers

pytest.importorskip("ray")

from cpfl.engines.ray.engine import cohorts_to_steal, pack


def test_the_costliest_cohort_is_packed_first_on_the_least_loaded_worker() -> None:
    costs = {0: 5.0, 1: 4.0, 2: 3.0, 3: 3.0, 4: 3.0}
    assert pack(costs, [0.0, 0.0]) == [[0, 3], [1, 2, 4]]
    assert pack({7: 1.0, 8: 1.0}, [10.0, 0.0]) == [[], [7, 8]]
    shares = pack(dict.fromkeys(range(100), 1.0), [0.0] * 8)
    assert sorted(cohort for share in shares for cohort in share) == list(range(100))


def test_a_free_worker_steals_half_of_the_fullest_and_never_the_last_cohort() -> None:
    assert cohorts_to_steal([{}, {1: 2.0}, {2: 1.0}]) is None
    assert cohorts_to_steal([{}, {1: 2.0, 2: 1.0, 3: 1.0}, {4: 9.0}]) == (1, [2, 3])


@pytest.mark.cluster
def test_cohorts_of_a_slow_worker_move_between_rounds(
    cluster: Nodes, plain: Callable[..., Path], gate: Gate, tmp_path: Path
) -> None:
    """One of two workers is paused until the other has no cohorts left."""
    out = tmp_path / "run"
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    held = gate.settings(SMALL)
    process = start("run", "digits", *settings(held), *options, "--out", out)
    slow, quick = at_work(process, out, 2)
    os.kill(slow["pid"], signal.SIGSTOP)
    gate.open()
    try:
        free = lambda: any(w["pid"] == quick["pid"] and not w["cohorts"] for w in workers(out))  # noqa: E731
        until(free, process)
    finally:
        os.kill(slow["pid"], signal.SIGCONT)
    assert "Ray: 2 workers on 3 nodes, a core each" in ended(process)
    assert json.loads((out / "workers.json").read_text())["moved"] > 0
    same(out, plain(held))
