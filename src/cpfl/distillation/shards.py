"""Targets made by several: the public set in shards, the teachers summed on each, as the paper proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpfl import models
from cpfl.distillation.targets import Numbers, teacher_modules
from cpfl.experiment import Distillation
from cpfl.models import State
from cpfl.problem import Problem

WHOLE = 1024  # samples that stay together: one forward pass on a CPU, so that shards change no bit there

Piece = tuple[int, int, int]
"""A view of the public set, and from which sample to which."""

Job = Callable[[Problem, torch.device, Callable[[], Iterator[Any]], Any], NDArray[Any]]
"""(problem, device, what is shared, one item after the other; a piece) -> what came of the piece."""


@runtime_checkable
class Helpers(Protocol):
    """Who can do pieces of work side by side; an engine of several machines is one."""

    @property
    def width(self) -> int:
        """Pieces that are done at once."""

    def share(self, items: Iterable[Any]) -> list[Any]:
        """Have items where every helper can read them, one after the other."""

    def spread(self, job: Job, shared: list[Any], pieces: Sequence[Any]) -> list[NDArray[Any]]:
        """What the job makes of each piece, in their order."""


@dataclass(frozen=True)
class Labelling:
    """The job: the joined targets of a piece of the public set."""

    cohorts: Sequence[int]
    weights_NC: NDArray[np.float64]
    settings: Distillation

    def __call__(
        self, problem: Problem, device: torch.device, shared: Callable[[], Iterator[Any]], piece: Piece
    ) -> NDArray[Any]:
        from cpfl.distillation.views import Views  # which asks for shards itself

        view, first, last = piece
        models.choose_arithmetic(problem.experiment.precision)
        numbers = Numbers(device, problem.experiment.precision)
        modules = teacher_modules(problem, self.cohorts, numbers)
        views = Views(
            problem, modules, lambda: map(models.from_arrays, shared()), self.weights_NC, self.settings, numbers
        )
        return views.joined(view, first, last).cpu().numpy()


class Shards:
    """Targets of whole views, made by helpers."""

    def __init__(self, helpers: Helpers, labelling: Labelling, teachers: Iterable[State]) -> None:
        self._helpers, self._labelling = helpers, labelling
        self._shared = helpers.share(map(models.to_arrays, teachers))

    def joined(self, view: int, count: int, device: torch.device) -> Tensor:
        """The targets of so many samples."""
        pieces = [(view, first, last) for first, last in cut(count, self._helpers.width)]
        found = self._helpers.spread(self._labelling, self._shared, pieces)
        return torch.from_numpy(np.concatenate(found)).to(device)


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """So many samples in as many parts at most, about equal and of whole forward passes."""
    size = -(-count // (parts * WHOLE)) * WHOLE
    return [(first, min(first + size, count)) for first in range(0, count, size)]
