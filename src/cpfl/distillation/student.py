"""The student: a fresh model that learns the joined targets on public samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpfl import models
from cpfl.errors import CpflError, ModelError
from cpfl.experiment import Distillation
from cpfl.randomness import stream

Batch = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(epoch, rows of the public set) -> the student's inputs and their targets."""


@dataclass(frozen=True)
class EpochRecord:
    """One line of a distillation's records."""

    epoch: int  # counted from 1
    loss: float
    accuracy: float  # on the test set, in per cent


def teach(
    student: nn.Module,
    settings: Distillation,
    seed: int,
    samples: int,
    batch: Batch,
    accuracy: Callable[[nn.Module], float],
    on_epoch: Callable[[EpochRecord], None],
) -> None:
    """Adam on the public samples, epoch after epoch, each in its own order."""
    optimizer = torch.optim.Adam(student.parameters(), settings.lr)
    device = next(student.parameters()).device
    for epoch in range(settings.epochs):
        student.train()
        order = torch.from_numpy(stream(seed, "distill", epoch).permutation(samples)).to(device)
        total = torch.zeros((), device=device)
        with torch.random.fork_rng():
            models.seed_torch(seed, "model-epoch", epoch)
            for rows in torch.split(order, settings.batch_size):
                inputs, targets = batch(epoch, rows)
                loss = distance(_answer(student, inputs), targets, settings)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach() * len(rows)
        if not math.isfinite(total.item()):
            raise CpflError(f"the student's loss became {total.item()} in epoch {epoch + 1}: lower distillation.lr")
        on_epoch(EpochRecord(epoch + 1, total.item() / samples, accuracy(student)))


def _answer(student: nn.Module, inputs: Tensor) -> Tensor:
    try:
        return student(inputs)  # type: ignore[no-any-return]
    except (ValueError, TypeError) as error:  # BatchNorm on a batch of one, for example
        raise ModelError(f"the student cannot train on a batch of {len(inputs)}: {models.first_line(error)}") from None


def distance(logits_BC: Tensor, targets_BC: Tensor, settings: Distillation) -> Tensor:
    """How far the student is from what it is taught; l1 and mse are means over batch and classes."""
    heat = settings.temperature
    if settings.loss == "kl":
        goal = torch.softmax(targets_BC / heat, dim=1) if settings.join == "logits" else targets_BC
        return functional.kl_div(functional.log_softmax(logits_BC / heat, dim=1), goal, reduction="batchmean") * heat**2
    answer = logits_BC if settings.join == "logits" else torch.softmax(logits_BC / heat, dim=1)
    return functional.l1_loss(answer, targets_BC) if settings.loss == "l1" else functional.mse_loss(answer, targets_BC)
