"""Recurrent layers made of matrix products and elementwise operations, which vmap can batch; torch's own it cannot.

`unroll` gives a model's LSTM, GRU and RNN layers and cells the classes of this module; their parameters, names and
results stay. Axes: T steps, B batch, F features, H hidden, G gates × H.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

State = tuple[Tensor, ...]
"""What is carried from step to step: h, and in an LSTM also c."""


def lstm_step(x_BG: Tensor, h_BG: Tensor, state: State) -> State:
    """The next state, from the gates' products with the input and with h."""
    i, f, g, o = (x_BG + h_BG).chunk(4, dim=-1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(x_BG: Tensor, h_BG: Tensor, state: State) -> State:
    """The next state of a GRU."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = x_BG.chunk(3, dim=-1), h_BG.chunk(3, dim=-1)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (n + (z_x + z_h).sigmoid() * (state[0] - n),)


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": lstm_step,
    "GRU": gru_step,
    "RNN_TANH": lambda x_BH, h_BH, state: ((x_BH + h_BH).tanh(),),
    "RNN_RELU": lambda x_BH, h_BH, state: ((x_BH + h_BH).relu(),),
}


def run(layer: Any, x_TBF: Tensor, start: State, suffix: str = "") -> tuple[list[Tensor], State]:
    """One layer in one direction, its weights' names with this suffix: the output of every step, and the last state."""
    weights: list[Any] = [getattr(layer, f"{name}{suffix}", None) for name in NAMES]
    w_x, w_h, b_x, b_h, w_projection = weights
    state, step, outputs = start, STEPS[layer.mode], []
    if not state:
        sizes = (w_h.shape[1], layer.hidden_size)  # they differ where h is projected
        state = tuple(x_TBF.new_zeros(x_TBF.shape[1], size) for size in sizes)
    for x_BG in linear(x_TBF, w_x, b_x).unbind():  # one product for all steps
        h_BH, *others = step(x_BG, linear(state[0], w_h, b_h), state)
        state = (h_BH if w_projection is None else linear(h_BH, w_projection), *others)
        outputs.append(state[0])
    return outputs, state


class Layer(nn.RNNBase):
    """The forward pass of layers."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As torch's, for sequences of one length."""
        if not isinstance(input, Tensor):
            raise NotImplementedError(f"{self.mode} takes packed sequences")
        given, batch = as_state(hx), 0 if self.batch_first else 1
        if single := input.dim() == 2:
            input, given, batch = input[:, None], tuple(value[:, None] for value in given), 1
        x_TBF, last = input.movedim(batch, 1), list[State]()
        for k in range(self.num_layers):
            directions = []
            for backward in range(1 + self.bidirectional):
                start, suffix = tuple(value[len(last)] for value in given), f"_l{k}" + "_reverse" * backward
                outputs, state = run(self, x_TBF.flip(0) if backward else x_TBF, start, suffix)
                directions.append(torch.stack(outputs[::-1] if backward else outputs))
                last.append(state)
            x_TBF = torch.cat(directions, dim=-1)
        output, final = x_TBF.movedim(1, batch), tuple(torch.stack(values) for values in zip(*last, strict=True))
        if single:
            output, final = output[:, 0], tuple(value[:, 0] for value in final)
        return output, final if len(final) > 1 else final[0]


class Cell(nn.RNNCellBase):
    """The forward pass of cells: one step."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """As torch's."""
        given, single = as_state(hx), input.dim() == 1
        if single:
            input, given = input[None], tuple(value[None] for value in given)
        _, state = run(self, input[None], given)
        if single:
            state = tuple(value[0] for value in state)
        return state if len(state) > 1 else state[0]


def as_state(hx: Any) -> State:
    """An initial state as torch's layers take it; empty: zeros."""
    return () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)


class LSTM(Layer, nn.LSTM):
    """nn.LSTM."""


class GRU(Layer, nn.GRU):
    """nn.GRU."""


class RNN(Layer, nn.RNN):
    """nn.RNN."""


class LSTMCell(Cell, nn.LSTMCell):
    """nn.LSTMCell."""

    mode = "LSTM"


class GRUCell(Cell, nn.GRUCell):
    """nn.GRUCell."""

    mode = "GRU"


class RNNCell(Cell, nn.RNNCell):
    """nn.RNNCell."""

    @property
    def mode(self) -> str:
        """The step's name, as in nn.RNN."""
        return f"RNN_{self.nonlinearity.upper()}"


CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    own.__mro__[2]: own for own in (LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell)
}
"""The class here for each of torch's; a subclass of those may have a forward pass of its own."""


def unroll(module: nn.Module) -> bool:
    """Change the classes of a model's recurrent layers; whether it has any. Layers that draw dropout are left alone."""
    found = False
    for layer in module.modules():
        if type(layer) in CLASSES and not (isinstance(layer, nn.RNNBase) and layer.dropout and layer.num_layers > 1):
            layer.__class__, found = CLASSES[type(layer)], True
    return found
