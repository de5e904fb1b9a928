"""Models as rows of numbers, so that moving or adding up models is moving or adding up rows; and means of models.

Axes: P trained parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpfl import models
from cpfl.models import State
from cpfl.models.adapter import Inputs

IMAGE_AXES = 4  # of tensors that have channels


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a model lies in a row."""

    shapes: dict[str, torch.Size]  # of the trained parameters, in their order
    size: int  # P
    buffers: State
    frozen: State  # parameters that are not trained
    ties: dict[str, str]  # second names of a trained parameter, and its first
    channels_last: bool = False  # convolutions of a CPU are faster so

    @classmethod
    def from_module(cls, module: nn.Module, by_name: bool = False, channels_last: bool = False) -> "Layout":
        """The layout of a model, its tensors in the module's order, or by name and those of an odd size last.

        So each of the others lies where pairs of numbers can be viewed as complex ones.
        """
        parameters, every = models.trained(module), dict(module.named_parameters(remove_duplicate=False))
        first = {id(value): name for name, value in parameters.items()}
        once = {id(value): value.detach() for value in every.values() if id(value) not in first}  # the same if tied
        frozen = {name: once[id(value)] for name, value in every.items() if id(value) in once}
        ties = {n: first[id(value)] for n, value in every.items() if id(value) in first and n not in parameters}
        state = module.state_dict()  # without buffers that are not persistent: those belong to the module alone
        named = module.named_buffers(remove_duplicate=False)
        buffers = {name: value.detach() for name, value in named if name in state}
        sizes = {name: value.numel() for name, value in parameters.items()}
        order = sorted(sizes, key=lambda name: (sizes[name] % 2, name)) if by_name else sizes
        shapes = {name: state[name].shape for name in order}
        size = sum(shape.numel() for shape in shapes.values())
        return cls(shapes, size, buffers, frozen, ties, channels_last)

    def views(self, rows: Tensor) -> State:
        """The parameters by name of a row, or of a matrix of rows; they share its memory."""
        start, views = 0, {}
        for name, shape in self.shapes.items():
            views[name] = self.view(rows[..., start : start + shape.numel()], shape)
            start += shape.numel()
        return views

    def view(self, numbers: Tensor, shape: torch.Size) -> Tensor:
        """A tensor of this shape from its part of a row, or of a matrix of rows."""
        lead = numbers.shape[:-1]
        if self.channels_last and len(shape) == IMAGE_AXES:
            outputs, channels, height, width = shape
            return numbers.view((*lead, outputs, height, width, channels)).movedim(-1, -3)
        return numbers.view((*lead, *shape))

    def flat(self, value: Tensor) -> Tensor:
        """A tensor's numbers in the order in which a row holds them."""
        return (value.movedim(1, -1) if self.channels_last and value.dim() == IMAGE_AXES else value).reshape(-1)

    def arranged(self, x: Inputs) -> Inputs:
        """A batch in the memory order of the parameters."""
        if self.channels_last and isinstance(x, Tensor) and x.dim() == IMAGE_AXES:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def row(self, state: State, device: torch.device) -> Tensor:
        """A new row with a model's parameters."""
        return torch.cat([self.flat(state[name].detach().to(device)) for name in self.shapes])

    def state(self, row: Tensor) -> State:
        """A row as a model's state; the row must not change any more."""
        own = self.views(row)
        return {**own, **{name: own[first] for name, first in self.ties.items()}, **self.frozen, **self.buffers}

    def sent(self, state: State) -> State:
        """What travels of a model: its trained parameters and its buffers, each parameter once."""
        return {name: value for name, value in state.items() if name not in self.frozen and name not in self.ties}

    def received(self, sent: State) -> State:
        """The whole model again where `sent` arrives."""
        return {**sent, **{name: sent[first] for name, first in self.ties.items()}, **self.frozen}

    @property
    def sent_bytes(self) -> int:
        """Bytes of what travels in single precision."""
        others = [value.float() if value.is_floating_point() else value for value in self.buffers.values()]
        return 4 * self.size + sum(value.nbytes for value in others)


class RunningMean:
    """A weighted mean, streamed: memory does not grow with the number of models."""

    def __init__(self) -> None:
        self._sum: State = {}
        self._weight = 0.0

    def add(self, state: State, weight: float) -> None:
        """Add one model; it is not kept."""
        for name, value in state.items():
            if name not in self._sum:
                self._sum[name] = value * weight if value.is_floating_point() else value.clone()
            elif value.is_floating_point():  # counters, such as BatchNorm's, stay those of the first model
                self._sum[name].add_(value, alpha=weight)
        self._weight += weight

    def result(self) -> State:
        """The mean of what was added."""
        return {n: v / self._weight if v.is_floating_point() else v for n, v in self._sum.items()}


def ema(average: State, model: State, share: float) -> State:
    """An exponential moving average with `share` of the new model: steps of constant length end around a minimum, their
    mean nearer to it. It is a new state, because others may still hold the old one."""
    if share >= 1:
        return model
    names = [name for name, value in model.items() if value.is_floating_point()]  # counters are the newest model's
    olds = [average[name].to(model[name].device) for name in names]
    news = torch._foreach_lerp(olds, [model[name] for name in names], share)
    return model | dict(zip(names, news, strict=True))
