"""A node that joins during a run is checked like all others: no worker runs on one with other code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cluster.nodes import Nodes, python, said

import cpfl

pytestmark = pytest.mark.cluster

# Work on three workers; then, when the test has changed the cluster, until a worker has been given up.
WORK = """
import json, sys, time
from cpfl.settings import experiment_file
from cpfl.data.given import Given
from cpfl.engines.ray import ClusterConfig
from cpfl.engines.ray.engine import RayEngine
from cpfl.task.task import build_task

def job(task, device, shared, piece):
    return piece * 2

notes, happened = [], []
task = build_task(experiment_file.load("digits"), [], Given())
engine = RayEngine(task, ClusterConfig(sys.argv[1]), 3, notes.append)
engine.on_event = lambda event, **facts: happened.append([event, facts["why"]])
print(json.dumps(engine.spread(job, [], range(6))), flush=True)
sys.stdin.readline()
while not any(event == "worker given up" for event, why in happened):
    answers = engine.spread(job, [], range(6))
    time.sleep(0.2)
print(json.dumps([answers, happened, notes]))
engine.close()
"""


def changed(folder: Path) -> Path:
    """Where cpfl has one line more."""
    shutil.copytree(Path(cpfl.__file__).parent, folder / "cpfl", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "cpfl" / "errors.py").open("a") as file:
        file.write("# another line\n")
    return folder


def test_a_node_with_other_code_does_not_replace_one_that_is_lost(cluster: Nodes, tmp_path: Path) -> None:
    good = cluster.add()
    process = python(WORK, cluster.address)
    assert json.loads(process.stdout.readline()) == [0, 2, 4, 6, 8, 10]
    other = cluster.add(PYTHONPATH=str(changed(tmp_path)))
    try:
        cluster.remove(good)
        process.stdin.write("continue\n")
        ((answers, happened, notes),) = said(process)
    finally:
        cluster.dismiss(other)
    assert answers == [0, 2, 4, 6, 8, 10]
    assert happened[0][0] == "worker died"  # with the node, and so may others before that is known to be lost
    refused = [[event, why] for event, why in happened[1:] if "its node has died" not in why]
    assert [event for event, why in refused] == ["worker died"] * 3 + ["worker given up"]
    for _, why in refused:
        assert "with other code than this driver's: install the same on all nodes" in why
    assert "3 workers one after the other could not start, the last one because: node " in notes[-1]
    assert notes[-1].endswith("; the other 2 continue")
