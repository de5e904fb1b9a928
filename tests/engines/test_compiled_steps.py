"""Lanes compile the steps of our local parts: the compiler can take each as one piece, and it stays the same step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cpfl.experiment import Federation
from cpfl.federation import parts
from cpfl.federation.local_part import Course, LocalPart, Step
from cpfl.federation.schedule import constant
from cpfl.part_settings import LOCALS

L, P = 4, 50
CASES: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    **{name: {"local": name} for name in LOCALS},
    "adamw, decay": {"local": "adamw", "weight_decay": 0.1, "clip": 0.5},
    "scaffold, cosine": {"local": "scaffold", "schedule": "cosine", "schedule_rounds": 3},
}


def rows(generator: torch.Generator) -> Tensor:
    return torch.randn(L, P, generator=generator, dtype=torch.float64)


def stepped(part: LocalPart, step: Step | None) -> list[Tensor]:
    """Parameters and memories after four steps."""
    numbers = torch.Generator().manual_seed(1)
    params, settings = rows(numbers), part.settings
    lr: float | Tensor = 0.1 if constant(settings) else torch.linspace(0.1, 0.2, L, dtype=torch.float64)[:, None]
    memory = {name: torch.zeros_like(params) for name in part.memory}
    at = Course(lr, torch.zeros(L, 1, dtype=torch.float64), memory, rows(numbers), rows(numbers), rows(numbers))
    for _ in range(4):
        at.count.add_(1)
        part.learn(params, rows(numbers), at, step)
    return [params, *at.memory.values()]


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_step_is_the_same(case: str) -> None:
    torch._dynamo.reset()
    part = parts.local_part(Federation(**CASES[case]))
    whole = torch.compile(part.step, dynamic=False, fullgraph=True, backend="aot_eager")
    for plain, compiled in zip(stepped(part, None), stepped(part, whole), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-12)
