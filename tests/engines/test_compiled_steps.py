"""Steps as graphs: those of our client optimizers are compiled on a GPU, a whole step is recorded on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.data.given import Given, as_samples
from cpfl.engines.lanes import LaneEngine, buffers, graphs
from cpfl.engines.lanes.model import LaneModel
from cpfl.federation import optimizers
from cpfl.federation.local_training import constant_rate
from cpfl.federation.optimizers.base import ClientOptimizer, ClientState, Step
from cpfl.method import open_sessions
from cpfl.settings import Federation, experiment_file
from cpfl.settings.choices import CLIENT_OPTIMIZERS
from cpfl.task.task import build_task

L, P = 4, 50
CASES: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "client_args": {"nesterov": True, "weight_decay": 0.01}},
    **{name: {"client": name} for name in CLIENT_OPTIMIZERS.names},
    "adamw, decay": {"client": "adamw", "client_args": {"weight_decay": 0.1}, "max_grad_norm": 0.5},
    "scaffold, cosine": {"client": "scaffold", "lr_schedule": "cosine", "lr_schedule_args": {"rounds": 3}},
}


def rows(generator: torch.Generator) -> Tensor:
    return torch.randn(L, P, generator=generator, dtype=torch.float64)


def stepped(part: ClientOptimizer, step: Step | None) -> list[Tensor]:
    """Parameters and buffers after four steps."""
    numbers = torch.Generator().manual_seed(1)
    params, settings = rows(numbers), part.settings
    lr: float | Tensor = 0.1 if constant_rate(settings) else torch.linspace(0.1, 0.2, L, dtype=torch.float64)[:, None]
    memory = {name: torch.zeros_like(params) for name in part.buffers}
    at = ClientState(lr, torch.zeros(L, 1, dtype=torch.float64), memory, rows(numbers), rows(numbers), rows(numbers))
    for _ in range(4):
        at.steps.add_(1)
        part.clip_and_step(params, rows(numbers), at, step)
    return [params, *at.buffers.values()]


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_step_is_the_same(case: str) -> None:
    torch._dynamo.reset()
    part = optimizers.client_optimizer(Federation(**CASES[case]))
    whole = torch.compile(part.step, dynamic=False, fullgraph=True, backend="aot_eager")
    for plain, compiled in zip(stepped(part, None), stepped(part, whole), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ["mlp", "gn-lenet"])
def test_a_step_on_a_cpu_is_recorded_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps repeat the operations, and give the bits that vmap and autograd give."""
    calls: dict[str, int] = {"losses": 0, "evaluation_losses": 0}

    class Counted(LaneModel):
        def losses(self, *inputs: Any) -> Any:
            calls["losses"] += 1
            return super().losses(*inputs)

        def evaluation_losses(self, *inputs: Any) -> Any:
            calls["evaluation_losses"] += 1
            return super().evaluation_losses(*inputs)

    monkeypatch.setattr(buffers, "LaneModel", Counted)
    images = model == "gn-lenet"
    shape = (3, 32, 32) if images else (1, 8, 8)
    x = np.random.default_rng(3).integers(0, 256, (60, *shape), np.uint8)
    samples = as_samples(x, np.arange(60) % 10)
    given = Given(samples, samples, as_samples(x))
    settings = ["clients=6", "cohorts=2", "max_rounds=3", f"model.name={model}", "data.train=(given)"]
    experiment = experiment_file.load("digits", [*settings, "data.public=(given)", "data.split=iid"])
    outcomes = []
    for record in (graphs.recorded, lambda work: work):
        monkeypatch.setattr("cpfl.engines.lanes.step.recorded", record)
        monkeypatch.setattr("cpfl.engines.lanes.evaluation.recorded", record)
        task = build_task(experiment, [], given)
        sessions = open_sessions(task)
        LaneEngine(task, torch.device("cpu")).train_cohorts(sessions, lambda session, closed: None)
        outcomes.append([session.model for session in sessions])
        if record is graphs.recorded:
            assert calls == {"losses": 1, "evaluation_losses": 1}
    assert calls["losses"] > 4  # and once for each step without it
    for recorded, plain in zip(*outcomes, strict=True):
        assert all(torch.equal(recorded[name], value) for name, value in plain.items())


def normalised() -> nn.Module:
    """Layers that have kernels, and one that keeps running statistics."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1),
        nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


@pytest.mark.parametrize("fitted", [False, True])
def test_what_a_gpu_compiles_of_a_step_is_one_graph_with_the_gradients_of_a_cpu(
    fitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    if fitted:  # the layers that lanes have on a GPU, which compute elsewhere too
        monkeypatch.setattr(models, "kernel_dtype", lambda device, precision: torch.float32)
    some = ["federation.participation=0.5", "federation.selection=oort"]  # which reports squared losses
    experiment = experiment_file.load("digits", ["clients=6", "cohorts=2", *some])
    task = build_task(experiment, [], Given(), normalised)
    lanes = LaneEngine(task, torch.device("cpu"), lanes=3).large
    generator = torch.Generator().manual_seed(2)
    lanes.params_LP.copy_(torch.randn(lanes.params_LP.shape, generator=generator) / 10)
    lanes.batches.device["rows"].copy_(torch.randint(-1, 50, lanes.batches.device["rows"].shape, generator=generator))
    (losses, gradients_LP), stats = lanes._from_views(), lanes.stats_LQ.clone()
    monkeypatch.setattr(lanes.buffers.model, "_device", torch.device("cuda"))
    lanes._forward = torch.compile(lanes._losses_of_rows, dynamic=False, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled, compiled_LP = lanes._from_rows()
        for ours, theirs in zip((*compiled, compiled_LP), (*losses, gradients_LP), strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(lanes.stats_LQ, stats)
