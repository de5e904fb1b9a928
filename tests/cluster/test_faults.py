"""What a cluster can lose: a worker, a node, the driver. Nothing is lost with them but open rounds."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.nodes import Nodes, at_work, events, rounds, same, settings, start, until

pytestmark = pytest.mark.cluster
LONG = {**SMALL, "max_rounds": 24}


def begun(cluster: Nodes, out: Path, workers: int = 2) -> subprocess.Popen[str]:
    return start(
        "run", "digits", *settings(LONG), "--engine", "ray", "--address", cluster.address, "--workers", str(workers),
        "--out", out,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], out: Path, plain: Callable[..., Path]) -> str:
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    same(out, plain(max_rounds=24))
    return said


def test_a_worker_is_killed(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begun(cluster, out)
    victim = until(lambda: at_work(out, 2), 120, "both workers train")[0]
    os.kill(victim["pid"], signal.SIGKILL)
    said = ended(process, out, plain)
    died = [event for event in events(out) if event["event"] == "worker died"]
    assert [event["pid"] for event in died] == [victim["pid"]]
    assert {again["cohort"] for again in died[0]["run_again"]} <= set(range(4))
    assert died[0]["run_again"]
    assert "died; run again elsewhere: round" in said


def test_a_node_is_removed(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path) -> None:
    node = cluster.add()
    out = tmp_path / "run"
    process = begun(cluster, out, workers=3)
    until(lambda: at_work(out, 3), 120, "three workers train")
    cluster.remove(node)
    ended(process, out, plain)
    assert [event for event in events(out) if event["event"] == "worker died"]


def test_the_driver_is_killed_and_resumed(cluster: Nodes, plain: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = begun(cluster, out)
    until(lambda: at_work(out, 2), 120, "both workers train")
    process.kill()
    process.communicate(timeout=30)
    before = sum(map(len, rounds(out).values()))
    assert 0 < before < 96
    process = start("resume", out, "--address", cluster.address)
    said = ended(process, out, plain)
    assert "going on after" in said
    assert events(out)[-2]["engine"] == "ray"  # the one it began with
