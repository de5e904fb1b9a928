"""Unrolled recurrent layers give what torch's own give, lane by lane: outputs, last states and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cpfl.kernels.recurrent import unroll

L, B, T, F, H = 3, 4, 5, 6, 7
CASES: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm, deep, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm, projected": (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bias": False}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru, deep, both ways": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "gru, no bias": (nn.GRU, {"bias": False}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "rnn, relu, both ways": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "batch_first": True}),
}
CELLS: dict[str, tuple[type[nn.RNNCellBase], dict[str, Any]]] = {
    "lstm": (nn.LSTMCell, {}),
    "gru": (nn.GRUCell, {"bias": False}),
    "rnn": (nn.RNNCell, {}),
    "rnn, relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}


def flat(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [value for part in outputs for value in flat(part)]


def results(layer: nn.Module, params: dict[str, Tensor], inputs: list[Any]) -> list[Tensor]:
    """A layer's outputs in one lane, and the gradients of its parameters and inputs."""
    leaves = [*params.values(), *flat(inputs)]
    outputs = flat(functional_call(layer, params, tuple(inputs)))
    loss = sum((value * value.detach().cos()).sum() for value in outputs)
    assert isinstance(loss, Tensor)
    return [value.detach() for value in outputs] + list(torch.autograd.grad(loss, leaves))


def assert_same(plain: nn.Module, inputs: list[Any]) -> None:
    """`inputs` are those of all lanes."""
    unrolled = copy.deepcopy(plain)
    assert unroll(unrolled)
    assert list(unrolled.state_dict()) == list(plain.state_dict())
    params = {
        name: torch.stack([value + 0.1 * torch.randn_like(value) for _ in range(L)]).detach().requires_grad_()
        for name, value in plain.named_parameters()
    }
    for value in flat(inputs):
        value.requires_grad_()
    outputs = flat(vmap(lambda p, x: functional_call(unrolled, p, tuple(x)))(params, inputs))
    loss = sum((value * value.detach().cos()).sum() for value in outputs)
    assert isinstance(loss, Tensor)
    ours = [value.detach() for value in outputs] + list(torch.autograd.grad(loss, [*params.values(), *flat(inputs)]))
    for lane in range(L):
        own = {name: value[lane] for name, value in params.items()}
        theirs = results(plain, own, [pick(part, lane) for part in inputs])
        for mine, value in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine[lane], value, rtol=0, atol=1e-12)


def pick(part: Any, lane: int) -> Any:
    return part[lane] if isinstance(part, Tensor) else tuple(value[lane] for value in part)


def random(*shape: int) -> Tensor:
    return torch.randn(L, *shape, dtype=torch.float64)


@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("single", [False, True], ids=["batch", "one sequence"])
@pytest.mark.parametrize("case", CASES)
def test_an_unrolled_layer_equals_the_layer(case: str, single: bool, given: bool) -> None:
    torch.manual_seed(0)
    kind, options = CASES[case]
    layer: Any = kind(F, H, **options).double()
    rows = layer.num_layers * (1 + layer.bidirectional)
    batch = () if single else (B,)
    x = random(T, F) if single else random(B, T, F) if layer.batch_first else random(T, B, F)
    state: Any = random(rows, *batch, layer.proj_size or H)
    if kind is nn.LSTM:
        state = (state, random(rows, *batch, H))
    assert_same(layer, [x, state] if given else [x])


@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("single", [False, True], ids=["batch", "one sample"])
@pytest.mark.parametrize("case", CELLS)
def test_an_unrolled_cell_equals_the_cell(case: str, single: bool, given: bool) -> None:
    torch.manual_seed(0)
    kind, options = CELLS[case]
    batch = () if single else (B,)
    state: Any = (random(*batch, H), random(*batch, H)) if kind is nn.LSTMCell else random(*batch, H)
    assert_same(kind(F, H, **options).double(), [random(*batch, F), state] if given else [random(*batch, F)])


def test_layers_that_do_something_else_are_left_alone() -> None:
    class Own(nn.LSTM):
        def forward(self, *args: Any) -> Any:
            return super().forward(*args)

    for layer in (Own(F, H), nn.GRU(F, H, num_layers=2, dropout=0.5), nn.Linear(F, H)):
        before = type(layer)
        assert not unroll(layer)
        assert type(layer) is before
