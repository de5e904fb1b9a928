"""Models that users bring: with frozen parameters, with another way in training, with statistics of a batch, with
`view`, which is particular about how numbers lie in memory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cpfl
from cpfl.data.given import Given
from cpfl.distillation.ensemble import Precision, to_device
from cpfl.engines.workers.trainer import worker_layout
from cpfl.errors import ModelError
from cpfl.models import looks_at_batches
from cpfl.runs.folder import RunFolder, load_state
from cpfl.settings import experiment_file
from cpfl.task.task import build_task

ENGINES = ("reference", "workers", "lanes")
PLAIN = {"federation.client": "scaffold", "federation.momentum": 0.0}


class Frozen(nn.Module):
    """The first layer, which another name shares, is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.LayerNorm(16), nn.Linear(16, 10)
        self.again = self.first
        self.first.requires_grad_(False)
        self.norm.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.again(x.flatten(1)).relu()))  # type: ignore[no-any-return]


class Louder(nn.Module):
    """In training it predicts less than in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else 3 * x


class Centred(nn.Module):
    """Its prediction for a sample depends on the whole batch, also in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Viewed(nn.Module):
    """Images become rows by `view`: that wants the rows of every channel next to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().view(len(x), -1))  # type: ignore[no-any-return]


class Standardised(nn.Conv2d):
    """Its own weights are viewed as rows."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.view(len(self.weight), -1)
        rows = rows / (rows.std(dim=1, keepdim=True) + 1e-5)
        return nn.functional.conv2d(x, rows.view_as(self.weight), self.bias, padding=1)


def standardised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), Standardised(4, 4, 3), nn.Flatten(), nn.Linear(256, 10)
    )


def trained(model: nn.Module, engine: str, place: Path, **settings: Any) -> cpfl.Run:
    chosen = {"clients": 9, "cohorts": 3, "max_rounds": 3, "precision": "float64", "data.train_limit": 400}
    chosen |= {"distillation.epochs": 1, "distillation.recipe": "cpfl", **settings}
    return cpfl.run("digits", model=model, out=place / engine, engine=engine, device="cpu", settings=chosen)


def assert_same(one: cpfl.Run, other: cpfl.Run) -> None:
    for ours, theirs in zip(one.rounds, other.rounds, strict=True):
        for key in ("loss", "validation"):
            assert ours[key] == pytest.approx(theirs[key], rel=0, abs=1e-12)


@pytest.mark.parametrize("change", [{}, PLAIN, {"federation.server": "fedadam"}])
def test_frozen_parameters_stay_what_they_are(change: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Frozen()
    runs = [trained(model, engine, tmp_path, **change) for engine in ENGINES]
    for run in runs:
        assert_same(run, runs[0])
        for cohort in (*(load_state(RunFolder.open(run.path).teacher(k)) for k in range(3)), run.model):
            for name in ("first.weight", "first.bias", "again.weight", "norm.bias"):
                assert torch.equal(cohort[name].double(), model.state_dict()[name].double()), name
            assert not torch.equal(cohort["last.weight"].double(), model.last.weight.double())


def test_nothing_to_train_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no parameter that is to be trained"):
        trained(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False), "workers", tmp_path)
    assert not list(tmp_path.iterdir())


def test_lanes_judge_as_a_model_is_used(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Louder())
    runs = [trained(model, engine, tmp_path) for engine in ENGINES]
    assert [run.summary["engine"] for run in runs] == list(ENGINES)
    for run in runs:
        assert_same(run, runs[0])


def test_clients_do_not_see_each_other_where_a_model_looks_at_batches(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Centred())
    assert_same(*(trained(model, engine, tmp_path) for engine in ("reference", "workers")))


def test_who_looks_at_batches() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    assert looks_at_batches(Centred(), x)
    assert looks_at_batches(nn.BatchNorm1d(8), x[:2])
    assert not looks_at_batches(nn.BatchNorm1d(8).eval(), x)
    assert not looks_at_batches(nn.Linear(8, 3), x)
    assert not looks_at_batches(nn.LayerNorm(8), x * float("nan"))


@pytest.mark.parametrize("model", [Viewed, standardised])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_models_that_view(model: Any, precision: str, tmp_path: Path) -> None:
    rounding = {"float64": 1e-12, "float32": 1e-4}[precision]
    runs = [trained(model(), engine, tmp_path, precision=precision) for engine in ENGINES]
    for run in runs[1:]:
        for ours, theirs in zip(run.rounds, runs[0].rounds, strict=True):
            assert ours["validation"] == pytest.approx(theirs["validation"], rel=0, abs=rounding)
        assert run.summary["engine"] != "reference"


@pytest.mark.parametrize(("model", "last"), [(Viewed, False), (standardised, False), (None, True)])
def test_channels_lie_last_where_a_model_can_be_shown_them_so(model: Any, last: bool) -> None:
    """… for that is how a CPU's convolutions are fast; what a model says is the same."""
    build = model or (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)))
    task = build_task(experiment_file.load("digits"), [], Given(), build)
    x = task.data.transform(torch.as_tensor(task.data.test.x))
    plain = build()
    there = to_device(copy.deepcopy(plain), task, Precision(torch.device("cpu"), "float32"))
    weights = [part.weight for part in there.modules() if isinstance(part, nn.Conv2d)]
    assert all(weight.stride()[1] == (1 if last else 9) for weight in weights)
    torch.testing.assert_close(there(x), plain(x), rtol=0, atol=1e-5)
    assert worker_layout(task).channels_last == last
