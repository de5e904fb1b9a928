"""A client's round as small integers, made on the host: which sample in which step, and how it is augmented.

Axes: S steps, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpfl.federation import local
from cpfl.problem import Problem

EMPTY = -1  # in place of a sample: nothing here


@dataclass(frozen=True)
class Task:
    """One client's work in one round of its cohort."""

    cohort: int
    client: int
    round: int
    steps: int
    samples: int


def plan_task(problem: Problem, task: Task) -> tuple[NDArray[np.int32], NDArray[np.int8] | None]:
    """Rows of the training set (S, B), empty where a batch is short, and the augmentation (S, B, 5)."""
    experiment, data = problem.experiment, problem.data
    own = data.clients[task.client].training
    batches = local.batches(experiment.federation, len(own), experiment.seed, task.client, task.round)
    rows = np.full((len(batches), experiment.federation.batch_size), EMPTY, np.int32)
    for step, batch in enumerate(batches):
        rows[step, : len(batch)] = own[batch]
    if not data.augmented:
        return rows, None
    plan = local.augmentation(task.samples, data.train.shape, experiment.seed, task.client, task.round)
    spread = np.zeros((*rows.shape, plan.shape[1]), np.int8)
    spread[rows != EMPTY] = plan  # both in batch order
    return rows, spread
