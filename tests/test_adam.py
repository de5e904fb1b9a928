"""The student's optimizer on a CPU equals torch.optim.Adam, without importing torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cpfl.distillation.student import Adam


class PartlyUsed(nn.Module):
    """A model with a parameter that is never used, and one that is used in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 5), nn.Linear(5, 3), nn.Parameter(torch.ones(4))
        self.sometimes = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, scaled: bool) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return self.second(hidden * self.sometimes if scaled else hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_equal_to_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = PartlyUsed().to(dtype), PartlyUsed().to(dtype)
    theirs.load_state_dict(ours.state_dict())
    mine, torchs = Adam(ours.parameters(), 0.01), torch.optim.Adam(theirs.parameters(), 0.01)
    for number in range(20):
        mine.lr = torchs.param_groups[0]["lr"] = 0.01 / (1 + number)
        x = torch.randn(8, 6, dtype=dtype)
        for model, optimizer in ((ours, mine), (theirs, torchs)):
            optimizer.zero_grad()
            model(x, number % 3 == 2).square().mean().backward()
            optimizer.step()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_a_run_does_not_import_the_compiler(tmp_path: Path) -> None:
    """Its import takes longer than a small run."""
    script = (
        "import sys, cpfl\n"
        "cpfl.run('digits', out='run', settings={'max_rounds': 1, 'distillation.epochs': 1})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
