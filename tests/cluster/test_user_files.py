"""A user's own model and data on a cluster; the workers of a node hold the population once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.cluster.nodes import Nodes, ended, python, said, same, settings, start
from tests.data.image_files import encode, write_shard

pytestmark = pytest.mark.cluster
MODEL = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self[1].requires_grad_(False)  # not sent: a node that rebuilds the task has it from the driver
"""
OWN: dict[str, Any] = {
    "data.train": "mine", "model.name": "my_net:Net", "cohorts": 2, "clients": 10, "max_rounds": 3,
    "data.public_limit": 1500, "distillation.epochs": 1,
}  # fmt: skip


def written(folder: Path) -> Path:
    """A small data set."""
    pixels, labels = load_digits(return_X_y=True)
    images = [encode(image) for image in (pixels.reshape(-1, 8, 8) * 15).astype(np.uint8)]
    for split, part in (("train", slice(0, 400)), ("test", slice(400, 600))):
        write_shard(folder / "mine" / f"{split}-00000-of-00001.parquet", images[part], label=labels[part])
    return folder


def test_a_users_model_and_data_that_nodes_read_themselves(
    cluster: Nodes, plain: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver reads its data from another folder than the nodes; its model is in the current folder."""
    driver, nodes = written(tmp_path / "driver"), written(tmp_path / "nodes")
    (tmp_path / "my_net.py").write_text(MODEL)
    out = tmp_path / "run"
    options = ["--data", driver, "--engine", "ray", "--address", cluster.address, "--node-data", nodes]
    ended(start("run", "digits", *settings(OWN), *options, "--out", out, cwd=tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    same(out, plain(OWN, data=driver))


# Whether each worker has the population's columns in memory that all processes of its node share.
LOOK = """
import json, sys
from pathlib import Path
from cpfl.settings import experiment_file
from cpfl.data.given import Given
from cpfl.engines.ray import ClusterConfig
from cpfl.engines.ray.engine import RayEngine
from cpfl.task.population import Population
from cpfl.task.task import build_task

def shared(task, device, items, piece):
    lines = Path("/proc/self/maps").read_text().splitlines()
    parts = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines if "plasma" in line]
    columns = Population(task.data.clients, task.fleet, task.cohorts).columns()
    addresses = {name: column.__array_interface__["data"][0] for name, column in columns.items()}
    return {name: any(begin <= address < end for begin, end in parts) for name, address in addresses.items()}

task = build_task(experiment_file.load("digits"), [], Given())
for folder in ("", sys.argv[2]):
    engine = RayEngine(task, ClusterConfig(sys.argv[1], node_data=folder), 2, lambda text: None)
    print(json.dumps(engine.spread(shared, [], [0, 1])))
    engine.close()
"""


def test_the_workers_of_a_node_share_the_population(cluster: Nodes, tmp_path: Path) -> None:
    travelled, read = said(python(LOOK, cluster.address, tmp_path))
    for worker in travelled + read:
        assert len(worker) == 5 + 2 + 4
        assert all(worker.values()), worker
