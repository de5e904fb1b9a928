"""What the student is taught: the teachers' outputs, joined.

Axes: N cohorts, T samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cpfl import models
from cpfl.experiment import Distillation
from cpfl.models import State
from cpfl.problem import Problem
from cpfl.stacked import layers

CHUNK = {"cuda": 4096}  # samples in one forward pass; elsewhere few enough to stay in a core's caches
FEW = 128
BISECTIONS = 12  # to a thousandth
KEPT = 2**30  # bytes of inputs that are kept for the next teacher instead of being made again

Teachers = Callable[[], Iterable[State]]
"""The teachers' models, one after the other: never all in memory."""

Inputs = Callable[[slice], Tensor]
"""The model inputs at these positions, made when they are needed."""


@dataclass(frozen=True)
class Numbers:
    """Where forward and backward passes are done, and in which arithmetic."""

    device: torch.device
    precision: str

    def arithmetic(self) -> AbstractContextManager[object]:
        """A stretch of this arithmetic."""
        return models.arithmetic(self.device, self.precision)


def placed(module: nn.Module, problem: Problem, numbers: Numbers) -> nn.Module:
    """On the device, with the layers that are fastest there; on a CPU, channels last makes it three times as fast."""
    kernels = models.kernel_dtype(numbers.device, numbers.precision)
    if kernels is not None:
        return layers.fit(module, kernels, alone=True).to(numbers.device)
    if numbers.device.type == "cpu" and numbers.precision != "float64":
        convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
        inputs = problem.data.transform(torch.as_tensor(problem.data.train.x[:2]))
        for order in (torch.channels_last, torch.contiguous_format):
            for part in convolutions:
                part.to(memory_format=order)  # type: ignore[call-overload]
            if models.takes(module, inputs):
                break
    return module.to(numbers.device)


class Chunks:
    """Inputs in the pieces that a forward pass takes, kept where they are few."""

    def __init__(self, count: int, inputs: Inputs, numbers: Numbers) -> None:
        self.numbers, size = numbers, CHUNK.get(numbers.device.type, FEW)
        self._parts = [slice(at, min(at + size, count)) for at in range(0, count, size)]
        self._inputs = inputs
        self._kept: list[Tensor] | None = None

    def __iter__(self) -> Iterator[Tensor]:
        if self._kept is None:
            kept, size = list[Tensor](), 0
            for part in self._parts:
                inputs = self._inputs(part)
                size += inputs.nbytes
                if size <= KEPT:
                    kept.append(inputs)
                yield inputs
            self._kept = kept if size <= KEPT else []
        elif self._kept:
            yield from self._kept
        else:
            yield from map(self._inputs, self._parts)


@torch.no_grad()
def logits_of(module: nn.Module, inputs: Chunks) -> Tensor:
    """A model's logits on all these inputs, (T, C)."""
    module.eval()
    with inputs.numbers.arithmetic():
        return torch.cat([module(x).to(x.dtype) for x in inputs])


def contribution(logits_TC: Tensor, settings: Distillation) -> Tensor:
    """What of a teacher is joined: its logits as they are or as log-probabilities, or its probabilities."""
    if settings.join == "logits":
        return logits_TC
    if settings.join == "log-probabilities":
        return torch.log_softmax(logits_TC, dim=1)
    return torch.softmax(logits_TC / settings.temperature, dim=1)


def sharpened(chances_TC: Tensor, heat: float) -> Tensor:
    """The same order of classes, surer of the first with a heat below 1."""
    return torch.softmax(chances_TC.clamp_min(torch.finfo(chances_TC.dtype).tiny).log() / heat, dim=1)


def fitting_heat(chances_TC: Tensor, share: float) -> float:
    """The heat at which the mean entropy is this share of what all classes alike would have; 1, if it is below that.

    Teachers that differ leave a joined prediction flat, the flatter the more of them there are. Its order of classes is
    good and its sureness is not; a student learns little from targets that hardly differ.
    """
    aim = share * math.log(chances_TC.shape[1])

    def entropy(heat: float) -> float:
        sharp = sharpened(chances_TC, heat)
        return -torch.xlogy(sharp, sharp).sum(dim=1).mean().item()

    if entropy(1.0) <= aim:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if entropy(middle) > aim else (middle, high)
    return high


def teacher_modules(problem: Problem, cohorts: Iterable[int], numbers: Numbers) -> list[nn.Module]:
    """What each of these cohorts' models is loaded into; cohorts that train the same model share one."""
    made: dict[int, nn.Module] = {}
    found = []
    for own in map(problem.of, cohorts):
        if id(own.build) not in made:
            dtype = problem.data.transform.dtype
            module = models.fresh(own.build, problem.experiment.seed, "init", dtype)
            made[id(own.build)] = placed(module, problem, numbers)
        found.append(made[id(own.build)])
    return found


def joined(
    modules: Iterable[nn.Module],
    teachers: Iterable[State],
    weights_NC: NDArray[np.float64],
    inputs: Sequence[Chunks],
    settings: Distillation,
) -> Tensor:
    """z̃ = Σ_i p_i ⊙ z_i, one teacher after the other: never N × T × C numbers at once. Of several inputs, which show
    the same samples, the mean counts."""
    total: Tensor | None = None
    for module, state, weight_C in zip(modules, teachers, weights_NC, strict=True):
        module.load_state_dict(state)
        part = torch.stack([contribution(logits_of(module, each), settings) for each in inputs]).mean(dim=0)
        part = part * torch.as_tensor(weight_C, dtype=part.dtype, device=part.device)
        total = part if total is None else total + part
    assert total is not None, "there is always a teacher"
    # Class weights leave probabilities that do not add up to one; a softmax student could not reach them.
    return total / total.sum(dim=1, keepdim=True) if settings.join == "probabilities" else total
