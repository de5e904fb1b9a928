"""A sweep on a cluster: one queue of runs, large ones on several workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.cluster.gate import Gate
from tests.cluster.nodes import Nodes, ended, events, python, said, same, settings, start, until
from tests.cluster.test_user_files import written

import cpfl
from cpfl.errors import SettingError

pytest.importorskip("ray")

QUICK = {
    "data.train": "mine", "clients": 10, "max_rounds": 3, "data.public_limit": 100, "distillation.epochs": 1,
}  # fmt: skip


def began(run: Path) -> str:
    engine: str = events(run)[0]["engine"]
    return engine


@pytest.mark.cluster
def test_a_sweep_on_two_nodes_is_that_of_one_process(cluster: Nodes, tmp_path: Path) -> None:
    """First n = 2 alone, which gets both slots, then beside it n = 1, which gets the one that there may be. Data are
    found from the folder of the command, which is not that of the nodes."""
    here, there = written(tmp_path / "here"), written(tmp_path / "there")
    where = ["--engine", "ray", "--address", cluster.address, "--out", "ray", "--data", "here"]
    ended(start("sweep", "digits", *settings(QUICK), "--cohorts", "2", *where, cwd=tmp_path))
    where += ["--node-data", "there", "--workers", "1"]
    ended(start("sweep", "digits", *settings(QUICK), "--cohorts", "1,2", *where, cwd=tmp_path))
    cpfl.sweep("digits", cohorts=[1, 2], out=tmp_path / "plain", settings=QUICK, engine="workers", data=here)
    for name in ("n001-seed90", "n002-seed90"):
        for path in sorted((tmp_path / "plain" / name / "rounds").iterdir()):
            assert path.read_bytes() == (tmp_path / "ray" / name / "rounds" / path.name).read_bytes()
    assert [began(tmp_path / "ray" / name) for name in ("n001-seed90", "n002-seed90")] == ["workers", "ray"]
    about = json.loads((tmp_path / "ray" / "n001-seed90" / "run.json").read_text())
    assert about["data_folder"] == str(there)
    assert json.loads((tmp_path / "ray" / "sweep.json").read_text())["engine"] == "ray"


@pytest.mark.cluster
def test_runs_share_the_cores_of_a_node_and_survive_its_death(cluster: Nodes, gate: Gate, tmp_path: Path) -> None:
    """Two runs train side by side when their process is killed, and again when the node goes. Two others diverge."""
    node = cluster.add(cpus=2)
    mine, held = written(tmp_path / "mine"), gate.settings(QUICK | {"cohorts": 2})
    where = ["--engine", "ray", "--address", cluster.address, "--workers", "2", "--data", str(mine)]
    grid = ["--seeds", "90,91", "--over", "federation.lr=0.05,1e30"]
    process = start("sweep", "digits", *settings(held), *grid, *where, "--out", tmp_path / "ray")
    fine = [tmp_path / "ray" / f"n002-seed{seed}-federation.lr-0.05" for seed in (90, 91)]
    until(lambda: all((run / "log.jsonl").is_file() for run in fine), process)
    (pid,) = until(lambda: {int(path.name.split("-")[-1]) for path in tmp_path.glob("gate-round-2-*")}, process)
    os.kill(pid, signal.SIGKILL)
    until(lambda: all(len(events(run)) > 1 for run in fine), process)
    cluster.remove(node)
    gate.open()
    text, _ = process.communicate()
    assert process.returncode == 1, text
    for run in fine:
        own = cpfl.load_run(run).experiment
        plain = cpfl.run(own, out=tmp_path / run.name, engine="workers", workers=1, data=mine)
        same(run, plain.path)
        happened = [event["event"] for event in events(run) if event["event"] != "run again"]
        assert happened == ["started", "resumed", "resumed", "finished"]
        assert {event.get("engine", "workers") for event in events(run)} == {"workers"}
    assert text.count(" failed: the loss of client ") == 2, text


def test_jobs_are_for_one_machine(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="jobs = 2 is for runs on this machine: with engine = 'ray', set workers"):
        cpfl.sweep("digits", cohorts=[1, 2], out=tmp_path / "sweep", engine="ray", jobs=2)
    assert not (tmp_path / "sweep").exists()


# Sweeps that fail: too many workers, GPUs that do not exist, and a callback that raises.
VAIN = """
import json, sys
import cpfl, ray
from cpfl.engines.ray import ClusterConfig
from cpfl.sweeps import SweepCallback

class Looking(SweepCallback):
    def on_start(self, grid, finished):
        assert ray.is_initialized()
        raise LookupError("cannot look")

words = {"out": sys.argv[2], "engine": "ray", "cluster": ClusterConfig(sys.argv[1])}
for what, more in (
    (cpfl.sweep, {"cohorts": [1], "workers": 3}),
    (cpfl.sweep, {"cohorts": [1], "device": "cuda"}),
    (cpfl.run, {"device": "cuda"}),
    (cpfl.sweep, {"cohorts": [1], "callback": Looking()}),
):
    try:
        what("digits", **words, **more)
    except (cpfl.CpflError, LookupError) as error:
        print(json.dumps([str(error), ray.is_initialized()]))
"""


@pytest.mark.cluster
def test_the_cluster_is_let_go_whatever_happens(cluster: Nodes, tmp_path: Path) -> None:
    errors, connected = zip(*said(python(VAIN, cluster.address, tmp_path / "sweep")), strict=True)
    assert connected == (False,) * 4
    too_many, *no_gpus, cannot_look = errors
    for error in no_gpus:
        assert error.startswith("device = cuda asks for GPUs, and the Ray cluster at ")
        assert error.endswith(" has none that Ray knows of")
    assert too_many.endswith("3 workers, each with a CPU, do not fit there; allowed: workers = 1 to 2")
    assert cannot_look == "cannot look"


# Which process does each of three runs that have a GPU, and which cards it and a run's driver see.
CARDS = """
import json, os, pathlib, sys
import ray
from cpfl.engines.ray import ClusterConfig, cluster
from cpfl.sweeps import on_ray

def look():
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "all")

config = ClusterConfig(sys.argv[1], 0.5)
with cluster.connection(config):
    scheduler = on_ray.ClusterScheduler(config, pathlib.Path(sys.argv[2]), None, 0)
    one = on_ray.task(look, {"num_cpus": 1, "num_gpus": 0.5}, True)
    runs = [ray.get(one.remote()) for _ in range(3)]
    drivers = [ray.get(on_ray.task(look, scheduler.driver(), True).remote()) for _ in range(2)]
    print(json.dumps([runs, drivers]))
"""


@pytest.mark.cluster
def test_runs_on_gpus_have_processes_of_their_own_and_their_drivers_see_the_cards(
    cluster: Nodes, tmp_path: Path
) -> None:
    node = cluster.add(cpus=2, gpus=1)
    try:
        ((runs, drivers),) = said(python(CARDS, cluster.address, tmp_path / "sweep"))
        assert len({pid for pid, _ in runs}) == 3
        assert {cards for _, cards in runs} == {"0"}
        assert [cards for _, cards in drivers] == ["all", "all"]
    finally:
        cluster.dismiss(node)
