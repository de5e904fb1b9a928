"""Models with frozen parameters on a fleet: these stay at nodes and server, and must be the same at both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cpfl
from cpfl.deploy.client import client_app
from cpfl.deploy.server import serve
from cpfl.engines.flower import messages
from cpfl.errors import StalledError

from .grid import Nodes, VirtualClock
from .test_rounds import PUBLIC, SETTINGS, TEST, TRAIN, data


class Lora(nn.Module):
    """A frozen layer with a trained change of rank 1."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 4)
        self.a, self.b = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.zeros(8, 1))
        with torch.no_grad():
            self.base.weight += shift

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))  # type: ignore[no-any-return]


TRAINED = 6 + 8 + 8 * 4 + 4
Given = Callable[[], nn.Module] | nn.Module


def fleet(model: Given, **config: Any) -> Nodes:
    grid = Nodes()
    for client in range(6):
        grid.add(100 + client, client_app(model, data), client=client, min_clients=2, **config)
    return grid


def deploy(
    grid: Nodes, path: Path, model: Given, strategy: Callable[[int], Strategy] | None = None, **config: Any
) -> cpfl.Run:
    run_config = {"out": str(path), "wait-seconds": 60, "round-seconds": 60, "tries": 2, "device": "cpu", **config}
    context = Context(1, 0, {}, RecordDict(), run_config, 0)
    serve(grid, context, model, TEST, PUBLIC, cpfl.Experiment(**SETTINGS), strategy, VirtualClock())
    return cpfl.load_run(path)


def sent(grid: Nodes) -> list[ArrayRecord]:
    """The arrays of all messages, both ways."""
    contents = [message.content for message in (*grid.sent, *grid.replies) if message.has_content()]
    return [content.array_records["arrays"] for content in contents if "arrays" in content.array_records]


def teachers(run: cpfl.Run) -> list[dict[str, Tensor]]:
    return [load_file(run.path / "models" / f"cohort-{cohort:04d}.safetensors") for cohort in (0, 1)]


def test_only_what_is_trained_travels(tmp_path: Path) -> None:
    grid = fleet(Lora)
    run = deploy(grid, tmp_path / "real", Lora)
    assert len(sent(grid)) > 2 * 6 * 3
    for arrays in sent(grid):
        state = messages.state(arrays)
        assert state.keys() == {"a", "b", "head.weight", "head.bias"}
        assert sum(value.nbytes for value in state.values()) == 4 * TRAINED
    simulated = cpfl.run(
        cpfl.Experiment(**SETTINGS), model=Lora, train=TRAIN, test=TEST, public=PUBLIC, out=tmp_path / "simulated",
        engine="reference", device="cpu",
    )  # fmt: skip
    assert {record["bytes"] for record in simulated.rounds} == {2 * 4 * TRAINED * 3}
    start = load_file(run.path / "models" / "start.safetensors")
    for one, other in zip(teachers(run), teachers(simulated), strict=True):
        assert (one["head.weight"] - other["head.weight"]).abs().max() < 1e-5
        for name in ("base.weight", "base.bias"):
            assert torch.equal(one[name], start[name])
            assert torch.equal(run.model[name], start[name])


def test_a_strategy_gets_only_what_is_trained(tmp_path: Path) -> None:
    grid = fleet(Lora)
    strategy = lambda cohort: FedAvg(min_train_nodes=2, min_available_nodes=2)  # noqa: E731
    run = deploy(grid, tmp_path / "real", Lora, strategy)
    assert all(array.keys() == {"a", "b", "head.weight", "head.bias"} for array in sent(grid) if "a" in array)
    start = load_file(run.path / "models" / "start.safetensors")
    assert torch.equal(run.model["base.weight"], start["base.weight"])


def test_a_node_with_another_base_is_refused_by_name(tmp_path: Path) -> None:
    grid, other = fleet(Lora), 4
    grid.add(100 + other, client_app(lambda: Lora(1e-3), data), client=other, min_clients=2)
    run = deploy(grid, tmp_path / "real", Lora)
    reasons = [record["excluded"][str(other)] for record in run.rounds if str(other) in record.get("excluded", {})]
    assert len(reasons) == 3
    assert all("the frozen parameters of this node's model are not those of the server" in why for why in reasons)
    assert all(other not in record["participants"] for record in run.rounds)


def test_a_base_from_a_file_that_nodes_have_elsewhere(tmp_path: Path) -> None:
    save_file(Lora(0.5).state_dict(), tmp_path / "server.safetensors")
    save_file(load_file(tmp_path / "server.safetensors"), tmp_path / "node.safetensors")
    start = {"model.start": str(tmp_path / "server.safetensors")}
    run = deploy(fleet(Lora, start=str(tmp_path / "node.safetensors")), tmp_path / "real", Lora, **start)
    assert torch.equal(run.model["base.weight"], load_file(tmp_path / "node.safetensors")["base.weight"])
    missing = fleet(Lora, start="nowhere.safetensors")
    with pytest.raises(StalledError, match=r"model\.start = 'nowhere\.safetensors' is no file"):
        deploy(missing, tmp_path / "missing", Lora, **start)


def test_nodes_need_no_file_where_nothing_is_frozen(tmp_path: Path) -> None:
    model = nn.Linear(6, 4)
    save_file(model.state_dict(), tmp_path / "server.safetensors")
    grid = fleet(lambda: nn.Linear(6, 4), start="nowhere.safetensors")
    run = deploy(
        grid, tmp_path / "real", lambda: nn.Linear(6, 4), **{"model.start": str(tmp_path / "server.safetensors")}
    )
    assert torch.equal(load_file(run.path / "models" / "start.safetensors")["weight"], model.weight)


def test_given_weights(tmp_path: Path) -> None:
    model = Lora()
    run = deploy(fleet(model), tmp_path / "real", model, **{"model.start": "given"})
    assert torch.equal(load_file(run.path / "models" / "start.safetensors")["head.weight"], model.head.weight)
    assert torch.equal(run.model["base.weight"], model.base.weight)
