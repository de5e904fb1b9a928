"""Workers, nodes and the driver die: only open rounds are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import SMALL
from tests.cluster.gate import Gate
from tests.cluster.nodes import Nodes, at_work, ended, events, rounds, same, settings, start, until, workers

pytestmark = pytest.mark.cluster
LARGE = {**SMALL, "model.args.hidden": 1000}  # 300 KB: Ray leaves it on the worker's node
# The teachers label four views of the public set, one after the other.
LABELLING = {
    **SMALL, "distillation.augment": "flip", "distillation.same_views": "true", "distillation.views": 4,
    "distillation.epochs": 4,
}  # fmt: skip


def died(out: Path) -> list[dict[str, Any]]:
    return [event for event in events(out) if event["event"] == "worker died"]


def test_a_worker_is_killed_and_a_node_is_removed(
    cluster: Nodes, plain: Callable[..., Path], gate: Gate, tmp_path: Path
) -> None:
    node = cluster.add()
    out = tmp_path / "run"
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "3"]
    held = gate.settings(SMALL)
    process = start("run", "digits", *settings(held), *options, "--out", out)
    found = at_work(process, out, 3)
    lost = next(worker["pid"] for worker in found if os.getpgid(worker["pid"]) == node.pid)
    victim = next(worker["pid"] for worker in found if worker["pid"] != lost)
    os.kill(victim, signal.SIGKILL)
    until(lambda: died(out), process)
    cluster.remove(node)
    gate.open()
    said = ended(process)
    same(out, plain(held))
    assert [event["pid"] for event in died(out)][:1] == [victim]
    assert lost in [event["pid"] for event in died(out)]
    again = died(out)[0]["run_again"]
    assert again
    assert {one["cohort"] for one in again} <= set(range(4))
    assert "died; run again elsewhere: round" in said


def test_a_node_is_removed_with_models_in_its_store(
    cluster: Nodes, plain: Callable[..., Path], gate: Gate, tmp_path: Path
) -> None:
    """The driver is paused until the node has messages for it and is lost: they can no longer be fetched."""
    node = cluster.add()
    out = tmp_path / "run"
    options = ["--engine", "ray", "--address", cluster.address, "--workers", "3"]
    held = gate.settings(LARGE)
    process = start("run", "digits", *settings(held), *options, "--out", out)
    found = at_work(process, out, 3)
    lost = next(worker["pid"] for worker in found if os.getpgid(worker["pid"]) == node.pid)
    process.send_signal(signal.SIGSTOP)
    gate.open()
    # Its third round, and so the answer to the open call for messages, is stored on its node when it begins the fifth.
    until(lambda: gate.begun(5, lost), process)
    cluster.remove(node)
    process.send_signal(signal.SIGCONT)
    ended(process)
    same(out, plain(held))
    # One that takes its place may be sent to the lost node too, while the head still counts that: it never begins.
    assert [event["pid"] for event in died(out) if event["pid"] is not None] == [lost]


def test_a_node_is_lost_as_a_run_begins(cluster: Nodes, tmp_path: Path) -> None:
    """The head takes some seconds to notice and counts the node until then."""
    cluster.remove(cluster.add())
    out = tmp_path / "run"
    said = ended(
        start("run", "digits", *settings(SMALL), "--engine", "ray", "--address", cluster.address, "--out", out)
    )
    assert "Ray: 2 workers on 3 nodes, a core each" in said


def test_the_driver_is_killed_and_resumed_and_a_worker_dies_while_teachers_label(
    cluster: Nodes, plain: Callable[..., Path], gate: Gate, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    options = ["--address", cluster.address, "--workers", "2"]
    held = gate.settings(LABELLING) | gate.distillation(out)
    process = start("run", "digits", *settings(held), "--engine", "ray", *options, "--out", out)
    at_work(process, out, 2)
    process.kill()
    process.communicate()
    assert 0 < sum(map(len, rounds(out).values())) < 48

    gate.open()
    process = start("resume", out, *options)
    epochs = out / "epochs.jsonl"
    until(epochs.is_file, process)
    victim = workers(out)[0]["pid"]
    os.kill(victim, signal.SIGSTOP)  # it has a part of the next view's targets, or gets one
    gate.open_distillation()
    labelling: dict[int, bool] = {}  # by time of the report: whether it was reported to label

    def waited_for() -> bool:
        """Three reports in a row: a worker that has answered is reported to label at most once more."""
        said = {worker["pid"]: worker["load"] for worker in workers(out)}
        labelling[(out / "workers.json").stat().st_mtime_ns] = said.get(victim) == 1.0
        return len(labelling) > 3 and all(list(labelling.values())[-3:])

    until(waited_for, process)
    os.kill(victim, signal.SIGKILL)
    said = ended(process)
    same(out, plain(held))
    assert "resuming after" in said
    assert "died; run again elsewhere: 1 of 2 parts of the targets" in said
    assert [event["pid"] for event in died(out)] == [victim]
    (again,) = died(out)[0]["run_again"]
    assert again["piece"][0] > 0
    assert again["piece"][1:] in ([0, 1024], [1024, 1500])
    assert [event["engine"] for event in events(out) if event["event"] == "resumed"] == ["ray"]  # as at the start
