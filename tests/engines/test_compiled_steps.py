"""Lanes compile the steps of our client optimizers: each is one graph, and stays the same step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cpfl.federation import optimizers
from cpfl.federation.local_training import constant_rate
from cpfl.federation.optimizers.base import ClientOptimizer, ClientState, Step
from cpfl.settings import Federation
from cpfl.settings.choices import CLIENT_OPTIMIZERS

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
