"""The step of a distillation on a CPU is torch.optim.Adam's, without what that loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cpfl.distillation.adam import Adam


class Partly(nn.Module):
    """A parameter that nothing uses, and one that is used only at times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 5), nn.Linear(5, 3), nn.Parameter(torch.ones(4))
        self.at_times = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, often: bool) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return self.second(hidden * self.at_times if often else hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_by_bit_that_of_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = Partly().to(dtype), Partly().to(dtype)
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


def test_a_run_does_without_the_compiler(tmp_path: Path) -> None:
    """Its import takes longer than a small run."""
    script = (
        "import sys, cpfl\n"
        "cpfl.run('digits', out='run', settings={'max_rounds': 1, 'distillation.epochs': 1})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
