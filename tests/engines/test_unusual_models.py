"""Models that users bring: with frozen parameters, with another way in training, with statistics of a batch, with
`view`, which is particular about how numbers lie in memory, with buffers that no file holds, recurrent ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
SMALL = {"clients": 4, "cohorts": 2, "max_rounds": 2, "data.train_limit": 120, "data.public_limit": 20}
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


class Centered(nn.Module):
    """Only in evaluation its prediction depends on the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x - x.mean(0)


class Sequences(nn.Module):
    """The batch is taken for the time: a sample sees those before it, and none after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.RNN(8, 6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x.squeeze(1))[0][:, -1])  # type: ignore[no-any-return]


class Silent(nn.Module):
    """It answers with zeros until it is trained, and depends on the batch from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x - 0.5 * x.mean(0))


class Rotated(nn.Module):
    """Rotary positions: a buffer that the state does not hold, and one that it holds under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(64, 10)
        angles = torch.arange(8.0)[:, None] / 10 ** torch.arange(4.0)
        self.register_buffer("angles", torch.cat([angles, angles], dim=1), persistent=False)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("again", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.squeeze(1))
        turned = torch.cat([-y[..., 4:], y[..., :4]], dim=-1)
        rotated = y * self.angles.cos() + turned * self.angles.sin()
        return self.last((rotated * self.scale * self.again).flatten(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Images are sequences of rows."""

    def __init__(self, layer: nn.RNNBase, starts: bool = False) -> None:
        super().__init__()
        self.layer, outputs = layer, layer.hidden_size * (1 + layer.bidirectional)
        self.start = nn.Parameter(torch.full((layer.num_layers, 1, layer.hidden_size), 0.1)) if starts else None
        self.last = nn.Linear(outputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.squeeze(1) if self.layer.batch_first else x.squeeze(1).transpose(0, 1)
        start = None if self.start is None else self.start.expand(-1, x.shape[0 if self.layer.batch_first else 1], -1)
        output, _ = self.layer(x, None if start is None else start.contiguous())
        return self.last(output.mean(1 if self.layer.batch_first else 0))  # type: ignore[no-any-return]


class Attentive(nn.Module):
    """Images are sequences of rows that attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x.squeeze(1)).mean(1))  # type: ignore[no-any-return]


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


Model = nn.Module | Callable[[], nn.Module]


def trained(model: Model, engine: str, place: Path, **settings: Any) -> cpfl.Run:
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


@pytest.mark.parametrize("model", [Sequences, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Silent())])
def test_clients_do_not_see_each_other_where_that_is_harder_to_notice(model: Model, tmp_path: Path) -> None:
    runs = [trained(model, engine, tmp_path, **SMALL) for engine in ENGINES]
    for run in runs:
        assert_same(run, runs[0])
    assert runs[2].summary["engine"] == "reference"


def test_lanes_leave_models_that_look_at_batches_in_evaluation(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Centered())
    runs = [trained(model, engine, tmp_path, **SMALL) for engine in ENGINES]
    for run in runs:
        assert_same(run, runs[0])
    assert [run.summary["engine"] for run in runs] == ["reference", "workers", "reference"]


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM(8, 6, num_layers=2, bidirectional=True)),
    "gru": lambda: Recurrent(nn.GRU(8, 6, batch_first=True), starts=True),
    "rnn": lambda: Recurrent(nn.RNN(8, 6, nonlinearity="relu", bias=False)),
}


@pytest.mark.parametrize(
    "model", [*RECURRENT.values(), Rotated, Attentive], ids=[*RECURRENT, "buffers outside the state", "attention"]
)
def test_more_models_that_lanes_train(model: Callable[[], nn.Module], tmp_path: Path) -> None:
    runs = [trained(model, engine, tmp_path, **SMALL) for engine in ("reference", "lanes")]
    assert_same(*runs)
    assert runs[1].summary["engine"] == "lanes"
    for name, value in runs[0].model.items():
        torch.testing.assert_close(runs[1].model[name], value, rtol=0, atol=1e-9)


def test_lanes_leave_layers_with_dropout_between_them(tmp_path: Path) -> None:
    run = trained(Recurrent(nn.GRU(8, 6, num_layers=2, dropout=0.5)), "lanes", tmp_path, **SMALL)
    assert run.summary["engine"] == "reference"


def test_who_looks_at_batches() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    assert looks_at_batches(Silent(), x)
    assert looks_at_batches(Sequences(), torch.randn(4, 1, 8, 8))
    assert looks_at_batches(Centered().eval(), x)
    assert not looks_at_batches(Centered(), x)
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
