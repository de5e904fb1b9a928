"""The student: a model that learns the joined targets on public samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpfl import models
from cpfl.distillation.adam import Adam
from cpfl.distillation.targets import Numbers
from cpfl.errors import CpflError, ModelError
from cpfl.experiment import Distillation
from cpfl.randomness import stream

RISE = 0.2  # of the steps of one cycle
WARM_UPS = 3  # plain steps before the step becomes a graph


class Lesson(Protocol):
    """What the student is shown, epoch by epoch. Tensors that `batch` reads keep their place in memory."""

    def begin(self, epoch: int) -> None:
        """Make the views and targets of this epoch ready."""

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The student's inputs and targets for these rows of the public set."""


@dataclass(frozen=True)
class EpochRecord:
    """One line of a distillation's records."""

    epoch: int  # counted from 1
    loss: float
    accuracy: float  # on the test set, in per cent


def teach(
    student: nn.Module,
    settings: Distillation,
    numbers: Numbers,
    seed: int,
    samples: int,
    lesson: Lesson,
    accuracy: Callable[[nn.Module], float],
    on_epoch: Callable[[EpochRecord], None],
) -> None:
    """Adam on the public samples, epoch after epoch, each in its own order."""
    device = next(student.parameters()).device
    step = Step(student, settings, numbers, lesson)
    steps = settings.epochs * math.ceil(samples / settings.batch_size)
    done = 0
    for epoch in range(settings.epochs):
        student.train()
        lesson.begin(epoch)
        order = torch.from_numpy(stream(seed, "distill", epoch).permutation(samples)).to(device)
        step.total.zero_()
        with torch.random.fork_rng():
            models.seed_torch(seed, "model-epoch", epoch)
            for rows in torch.split(order, settings.batch_size):
                if settings.schedule == "one-cycle":
                    step.set_rate(settings.lr * one_cycle(done / steps))
                step(rows)
                done += 1
        total = step.total.item()
        if not math.isfinite(total):
            raise CpflError(f"the student's loss became {total} in epoch {epoch + 1}: lower distillation.lr")
        on_epoch(EpochRecord(epoch + 1, total / samples, accuracy(student)))


def one_cycle(share: float) -> float:
    """The learning rate after this share of the steps, of its highest: up in a line, down along a cosine."""
    if share < RISE:
        return share / RISE
    return 0.5 * (1 + math.cos(math.pi * (share - RISE) / (1 - RISE)))


class Step:
    """One batch of distillation; on a GPU a graph from the fourth on, except for a last batch that is short."""

    def __init__(self, student: nn.Module, settings: Distillation, numbers: Numbers, lesson: Lesson) -> None:
        device = next(student.parameters()).device
        self._student, self._settings, self._numbers, self._lesson = student, settings, numbers, lesson
        self._on_gpu = device.type == "cuda"
        self._optimizer: Adam | torch.optim.Adam = Adam(student.parameters(), settings.lr)
        if self._on_gpu:  # a captured graph reads the rate where it is
            self._optimizer = torch.optim.Adam(student.parameters(), settings.lr, capturable=True)
            self._rate = self._optimizer.param_groups[0]["lr"] = torch.tensor(settings.lr, device=device)
        self._rows = torch.zeros(settings.batch_size, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._done = 0
        self.total = torch.zeros((), device=device)  # of the epoch: loss times samples

    def set_rate(self, rate: float) -> None:
        """Another learning rate from now on."""
        if isinstance(self._optimizer, Adam):
            self._optimizer.lr = rate
        else:
            self._rate.fill_(rate)

    def __call__(self, rows: Tensor) -> None:
        """Learn from these rows of the public set."""
        if not self._on_gpu or len(rows) < len(self._rows):
            self._work(rows)
            return
        self._rows.copy_(rows)
        if self._graph is not None:
            self._graph.replay()
        elif self._done < WARM_UPS:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._work(self._rows)
            torch.cuda.current_stream().wait_stream(side)
            self._done += 1
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._work(self._rows)
            self._graph = graph
            graph.replay()

    def _work(self, rows: Tensor) -> None:
        inputs, targets = self._lesson.batch(rows)
        with self._numbers.arithmetic():
            answer = _answer(self._student, inputs)
        loss = distance(answer.to(targets.dtype), targets, self._settings)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.total += loss.detach() * len(rows)


def _answer(student: nn.Module, inputs: Tensor) -> Tensor:
    try:
        return student(inputs)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
        raise ModelError(f"the student cannot train on a batch of {len(inputs)}: {models.first_line(error)}") from None


def distance(logits_BC: Tensor, targets_BC: Tensor, settings: Distillation) -> Tensor:
    """How far the student is from what it is taught; l1 and mse are means over batch and classes."""
    heat = settings.temperature
    if settings.loss == "kl":
        goal = targets_BC if settings.join == "probabilities" else torch.softmax(targets_BC / heat, dim=1)
        return functional.kl_div(functional.log_softmax(logits_BC / heat, dim=1), goal, reduction="batchmean") * heat**2
    answer = torch.softmax(logits_BC / heat, dim=1) if settings.join == "probabilities" else logits_BC
    return functional.l1_loss(answer, targets_BC) if settings.loss == "l1" else functional.mse_loss(answer, targets_BC)
