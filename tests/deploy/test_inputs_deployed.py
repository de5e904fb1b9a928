"""Several inputs on a fleet: the server's sets agree as those of a simulation do, or are refused before nodes train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch import Tensor, nn

import cpfl
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve, server_task
from cpfl.errors import DataError
from cpfl.task.task import Task

from .grid import Nodes, VirtualClock

CLIENTS, WORDS = 4, 9
RNG = np.random.default_rng(2)
WHOSE, IDS, TABLE = np.arange(160) % CLIENTS, RNG.integers(0, WORDS, (160, 5)), RNG.normal(size=(160, 3)).astype("f4")
Y = (IDS[:, 0] > 4).astype(int)
SETTINGS: dict[str, Any] = {
    "cohorts": 2, "clients": CLIENTS, "max_rounds": 2, "federation.lr": 0.1, "distillation.epochs": 2,
    "distillation.batch_size": 16, "privacy.min_clients": 1,
}  # fmt: skip


class Reader(nn.Module):
    """Takes words and numbers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 4), nn.Linear(7, 2)

    def forward(self, ids: Tensor, table: Tensor) -> Tensor:
        return self.head(torch.cat([self.words(ids).mean(1), table], 1))  # type: ignore[no-any-return]


def part(rows: slice) -> dict[str, Any]:
    return {"ids": IDS[rows], "table": TABLE[rows]}


TRAIN, TEST, LAST = slice(0, 100), slice(100, 130), slice(130, 160)
REVERSED = {"table": TABLE[LAST].astype("f8"), "ids": IDS[LAST]}


def deploy(out: Path, public: Any) -> cpfl.Run:
    """A fleet of four nodes with two inputs each."""
    grid = Nodes()
    for client in range(CLIENTS):
        own = slice(client, TRAIN.stop, CLIENTS)
        grid.add(client + 100, client_app(Reader, lambda _, own=own: (part(own), Y[own])), client=client, min_clients=1)
    config = {"out": str(out), "wait-seconds": 60, "round-seconds": 60, "tries": 2, "device": "cpu"}
    config["set"] = " ".join(f"{key}={value}" for key, value in SETTINGS.items())
    context = Context(1, 0, {}, RecordDict(), config, 0)
    serve(grid, context, Reader, (part(TEST), Y[TEST]), public, cpfl.Experiment(), None, VirtualClock())
    return cpfl.load_run(out)


def test_a_public_set_in_another_order_is_the_same(tmp_path: Path) -> None:
    """Its names decide; so the global model is that of the simulation."""
    columns = {"client": WHOSE[TRAIN]}
    simulated = cpfl.run(
        cpfl.Experiment(), model=Reader, train=(part(TRAIN), Y[TRAIN], columns), test=(part(TEST), Y[TEST]),
        public=REVERSED, out=tmp_path / "simulated", engine="reference", device="cpu",
        settings={**SETTINGS, "data.split": "column", "data.column": "client"},
    )  # fmt: skip
    deployed = deploy(tmp_path / "real", REVERSED)
    one, other = (load_file(run.path / "models" / "global.safetensors") for run in (simulated, deployed))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("public", [{"ids": IDS[LAST]}, {"ids": IDS[LAST], "numbers": TABLE[LAST]}, TABLE[LAST]])
def test_other_inputs_are_refused_before_nodes_train(public: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the public set's .* the test set's "):
        deploy(tmp_path / "run", public)
    assert not (tmp_path / "run").exists()


def test_public_images_of_another_size_are_fitted() -> None:
    """As in a simulation: data.public_fit has its effect at the server, or the sentence that names it is seen."""
    grey, colour = RNG.integers(0, 256, (30, 1, 8, 8), "u1"), RNG.integers(0, 256, (20, 3, 16, 16), "u1")

    def task(**data: Any) -> Task:
        model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2))  # noqa: E731
        return server_task(cpfl.Experiment(clients=4, data=data), model, (grey, Y[:30]), colour)

    assert task(public_fit="resize").data.public.shape == (1, 8, 8)
    with pytest.raises(DataError, match=r"shape \(3, 16, 16\), the test set's \(1, 8, 8\); set data.public_fit"):
        task()
